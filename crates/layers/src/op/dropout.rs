//! The dropout mask as a pure function of seed, row and column, so that the backward pass can make
//! it again.
//!
//! The same bits as [`kernels::dropout`], from integer operations that stay below 2^31: they mean
//! the same on backends with 32 and with 64-bit integers.

use burn::backend::tensor::{BoolTensor, Device, IntTensor};
use burn::backend::{Backend, get_or_init_device_settings};
use burn::tensor::{Distribution, Int, Tensor};

use super::DropoutOptions;
use super::tiles::{Run, Sizes, int_tensor};

/// A seed from the device's own generator, so that `device.seed` makes dropout reproducible.
pub(crate) fn draw_seed(device: &burn::tensor::Device) -> [u32; 2] {
    let limit = f64::from(i32::MAX);
    let words = Tensor::<1, Int>::random([2], Distribution::Uniform(0.0, limit), device);
    let words: Vec<i64> = words.into_data().iter::<i64>().collect();
    [words[0] as u32 & 0x7FFF_FFFF, words[1] as u32 & 0x7FFF_FFFF]
}

/// True where a weight is dropped, `[batch, heads, queries, keys]`.
pub(super) fn dropped<B: Backend>(
    options: DropoutOptions,
    sizes: &Sizes,
    queries: Run,
    keys: Run,
    device: &Device<B>,
) -> BoolTensor<B> {
    let [first, second] = options.seed.map(i64::from);
    let rows = (0..sizes.batch * sizes.heads).flat_map(|head| {
        (queries.start..queries.end).map(move |row| (head * sizes.query_len + row) as i64 ^ first)
    });
    let rows: Vec<i64> = rows.collect();
    let columns = (keys.start..keys.end).map(|column| column as i64 ^ second);
    let halves = |list: &[i64], shape: [usize; 4]| Halves::<B> {
        left: int_tensor::<B>(list.iter().map(|x| x >> 16).collect(), shape, device),
        right: int_tensor::<B>(list.iter().map(|x| x & 0xFFFF).collect(), shape, device),
    };
    let rows = halves(&rows, [sizes.batch, sizes.heads, queries.len(), 1]).mixed();
    let columns = halves(&columns.collect::<Vec<_>>(), [1, 1, 1, keys.len()]);
    let mixed = Halves::<B> {
        left: B::bitwise_xor(rows.left, columns.left),
        right: B::bitwise_xor(rows.right, columns.right),
    }
    .mixed();
    let high = B::bitwise_and_scalar(mixed.left, 0x7FFF.into());
    let number = B::int_add(B::bitwise_left_shift_scalar(high, 16.into()), mixed.right);
    let threshold = (options.probability * f64::from(1u32 << 31)) as i64;
    let dtype = get_or_init_device_settings::<B>(device).bool_dtype;
    B::int_lower_elem(number, threshold.into(), dtype)
}

/// The two 16-bit halves of 32-bit words.
struct Halves<B: Backend> {
    left: IntTensor<B>,
    right: IntTensor<B>,
}

impl<B: Backend> Halves<B> {
    fn mixed(self) -> Self {
        kernels::dropout::ROUNDS
            .iter()
            .fold(self, |Self { left, right }, &(factor, addend)| {
                let product = B::int_mul_scalar(right.clone(), i64::from(factor).into());
                let shifted = B::bitwise_right_shift_scalar(
                    B::int_add_scalar(product, i64::from(addend).into()),
                    7.into(),
                );
                let mixed = B::bitwise_and_scalar(shifted, 0xFFFF.into());
                Self {
                    left: right,
                    right: B::bitwise_xor(left, mixed),
                }
            })
    }
}
