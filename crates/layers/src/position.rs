//! Where a token stands: ALiBi's slopes.

/// The slopes of [ALiBi](https://arxiv.org/abs/2108.12409) for a number of heads: the geometric
/// sequence from `2^(-8/n)` for a power of two `n`; otherwise that of the power of two below,
/// followed by every second slope of the power of two above.
///
/// # Example
///
/// ```
/// assert_eq!(layers::alibi_slopes(2), [0.0625, 0.00390625]);
/// assert_eq!(layers::alibi_slopes(3), [0.0625, 0.00390625, 0.25]);
/// ```
pub fn alibi_slopes(heads: usize) -> Vec<f32> {
    let power_of_two = |n: usize| (1..=n).map(move |i| (-8.0 * i as f64 / n as f64).exp2() as f32);
    let below = match heads {
        0 => return Vec::new(),
        n => 1 << n.ilog2(),
    };
    let extra = power_of_two(2 * below).step_by(2);
    power_of_two(below).chain(extra).take(heads).collect()
}
