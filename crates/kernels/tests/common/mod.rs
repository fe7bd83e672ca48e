//! One case of attention with everything that it owns, the kernels' answer to it and that of a plain loop in f64.
#![allow(dead_code)] // each test uses its part
#![allow(missing_docs)]
#![allow(clippy::needless_range_loop, clippy::type_complexity)] // the plain loop is to look like one

use kernels::{
    Dropout, Element, Gradients, Isa, KeptWeights, KeyRanges, Problem, Saved, View, ViewMut,
    backward, forward, forward_keeping,
};

/// SplitMix64, <https://doi.org/10.1145/2714064.2660195>.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    pub fn normals(&mut self, len: usize) -> Vec<f64> {
        (0..len).map(|_| self.normal()).collect()
    }
}

/// Types that tests convert to and from.
pub trait Number: Element {
    /// How near answers are that differ by rounding, of the largest entry.
    const NEAR: f64;
    fn from_f64(x: f64) -> Self;
    fn acc(x: f64) -> Self::Acc;
    fn to_f64(self) -> f64;
}

impl Number for f32 {
    const NEAR: f64 = 1e-4;
    fn acc(x: f64) -> f32 {
        x as f32
    }
    fn from_f64(x: f64) -> Self {
        x as f32
    }
    fn to_f64(self) -> f64 {
        self.into()
    }
}

impl Number for f64 {
    const NEAR: f64 = 1e-10;
    fn acc(x: f64) -> f64 {
        x
    }
    fn from_f64(x: f64) -> Self {
        x
    }
    fn to_f64(self) -> f64 {
        self
    }
}

impl Number for half::f16 {
    const NEAR: f64 = 1e-2;
    fn acc(x: f64) -> f32 {
        x as f32
    }
    fn from_f64(x: f64) -> Self {
        Self::from_f64(x)
    }
    fn to_f64(self) -> f64 {
        self.into()
    }
}

impl Number for half::bf16 {
    const NEAR: f64 = 8e-2;
    fn acc(x: f64) -> f32 {
        x as f32
    }
    fn from_f64(x: f64) -> Self {
        Self::from_f64(x)
    }
    fn to_f64(self) -> f64 {
        self.into()
    }
}

pub fn cast<T: Number>(data: &[f64]) -> Vec<T> {
    data.iter().map(|&x| T::from_f64(x)).collect()
}

pub fn cast_acc<T: Number>(data: &[f64]) -> Vec<T::Acc> {
    data.iter().map(|&x| T::acc(x)).collect()
}

pub fn widen_acc<A: Copy + Into<f64>>(data: &[A]) -> Vec<f64> {
    data.iter().map(|&x| x.into()).collect()
}

pub fn widen<T: Number>(data: &[T]) -> Vec<f64> {
    data.iter().map(|&x| x.to_f64()).collect()
}

#[derive(Debug, Clone, Default)]
pub struct Case {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub d_k: usize,
    pub d_v: usize,
    pub q: Vec<f64>,
    pub k: Vec<f64>,
    pub v: Vec<f64>,
    pub grad_out: Vec<f64>,
    pub grad_lse: Option<Vec<f64>>,
    pub scale: Option<f64>,
    pub softcap: Option<f64>,
    pub ranges: Option<(Vec<u32>, Vec<u32>, Vec<i32>)>,
    pub blocked: Option<([usize; 4], Vec<u8>)>,
    pub bias: Option<([usize; 4], Vec<f64>)>,
    pub alibi: Option<Vec<f32>>,
    pub sink: Option<Vec<f64>>,
    pub dropout: Option<Dropout>,
    pub isa: Option<Isa>,
}

/// Output, logsumexp and gradients.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    pub out: Vec<f64>,
    pub lse: Vec<f64>,
    pub dq: Vec<f64>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
    pub dbias: Vec<f64>,
    pub dsink: Vec<f64>,
}

impl Answer {
    pub fn parts(&self) -> [(&'static str, &[f64]); 7] {
        [
            ("out", &self.out),
            ("lse", &self.lse),
            ("dq", &self.dq),
            ("dk", &self.dk),
            ("dv", &self.dv),
            ("dbias", &self.dbias),
            ("dsink", &self.dsink),
        ]
    }
}

/// Relative Frobenius error; equal infinities count as equal. `floor` is the least root mean square that the error
/// counts relative to.
pub fn error(found: &[f64], right: &[f64], floor: f64) -> f64 {
    assert_eq!(found.len(), right.len());
    let (mut difference, mut norm) = (0.0, floor * floor * right.len() as f64);
    for (&found, &right) in found.iter().zip(right) {
        if found == right {
            norm += if right.is_finite() {
                right * right
            } else {
                0.0
            };
        } else {
            difference += (found - right) * (found - right);
            norm += right * right;
        }
    }
    if difference == 0.0 {
        0.0
    } else {
        (difference / norm).sqrt()
    }
}

impl Case {
    /// Unit-variance inputs of a shape `[batch, heads, kv_heads, queries, keys, d_k, d_v]`.
    pub fn new(shape: [usize; 7], random: &mut Random) -> Self {
        let [batch, heads, kv_heads, queries, keys, d_k, d_v] = shape;
        Self {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            d_k,
            d_v,
            q: random.normals(batch * heads * queries * d_k),
            k: random.normals(batch * kv_heads * keys * d_k),
            v: random.normals(batch * kv_heads * keys * d_v),
            grad_out: random.normals(batch * heads * queries * d_v),
            ..Self::default()
        }
    }

    /// Rounds all inputs to what `T` can hold, so that the loop in f64 sees the same numbers.
    pub fn round<T: Number>(mut self) -> Self {
        let round = |data: &mut Vec<f64>| *data = widen::<T>(&cast(data));
        round(&mut self.q);
        round(&mut self.k);
        round(&mut self.v);
        round(&mut self.grad_out);
        if let Some((_, bias)) = &mut self.bias {
            round(bias);
        }
        let round = |data: &mut Vec<f64>| *data = widen_acc(&cast_acc::<T>(data));
        self.grad_lse.iter_mut().for_each(round);
        self.sink.iter_mut().for_each(round);
        self
    }

    /// The bottom-right causal mask.
    pub fn causal(mut self) -> Self {
        let offset = self.keys as i64 - self.queries as i64;
        let position: Vec<i32> = (0..self.queries as i64)
            .map(|i| (i + offset) as i32)
            .collect();
        let end = position.iter().map(|&p| (p + 1).max(0) as u32).collect();
        self.ranges = Some((vec![0; self.queries], end, position));
        self
    }

    /// The first so many queries see the keys 0 to 9, the others those from 140 on.
    pub fn islands(mut self, early: usize) -> Self {
        let late = |row: usize| row >= early;
        let first = (0..self.queries).map(|row| if late(row) { 140 } else { 0 });
        let end = (0..self.queries).map(|row| if late(row) { self.keys as u32 } else { 10 });
        self.ranges = Some((first.collect(), end.collect(), vec![0; self.queries]));
        self
    }

    pub fn rows(&self) -> usize {
        self.batch * self.heads * self.queries
    }

    pub fn range(&self, batch: usize, row: usize) -> (usize, usize, i64) {
        match &self.ranges {
            None => (
                0,
                self.keys,
                (self.keys as i64 - self.queries as i64) + row as i64,
            ),
            Some((first, end, position)) => {
                let at = |len: usize| {
                    if len == self.queries {
                        row
                    } else {
                        batch * self.queries + row
                    }
                };
                (
                    first[at(first.len())] as usize,
                    end[at(end.len())] as usize,
                    i64::from(position[at(position.len())]),
                )
            }
        }
    }

    pub fn scale(&self) -> f64 {
        self.scale.unwrap_or(1.0 / (self.d_k as f64).sqrt())
    }

    /// The kernels' answer; that with weights kept must be the same up to rounding.
    pub fn solve<T: Number>(&self) -> Answer {
        let answer = self.solve_with::<T>(false);
        if self.keys <= 64 {
            let keeping = self.solve_with::<T>(true);
            assert!(same(&keeping.out, &answer.out), "{}", self.describe());
            assert!(same(&keeping.lse, &answer.lse), "{}", self.describe());
            for ((name, x), (_, y)) in keeping.parts().into_iter().zip(answer.parts()) {
                let size = y.iter().fold(1.0, |size: f64, y| size.max(y.abs()));
                let near = |(x, y): (&f64, &f64)| {
                    (x.is_nan() && y.is_nan()) || x == y || (x - y).abs() <= T::NEAR * size
                };
                assert!(x.iter().zip(y).all(near), "{name}; {}", self.describe());
            }
        }
        answer
    }

    /// The kernels' answer, with weights kept between the passes or not.
    pub fn solve_with<T: Number>(&self, keeping: bool) -> Answer {
        let (q, k, v) = (cast::<T>(&self.q), cast::<T>(&self.k), cast::<T>(&self.v));
        let query = [self.batch, self.heads, self.queries, self.d_k];
        let key = [self.batch, self.kv_heads, self.keys, self.d_k];
        let value = [self.batch, self.kv_heads, self.keys, self.d_v];
        let out_shape = [self.batch, self.heads, self.queries, self.d_v];
        let mut problem = Problem::new(
            View::contiguous(&q, query).unwrap(),
            View::contiguous(&k, key).unwrap(),
            View::contiguous(&v, value).unwrap(),
        );
        problem.scale = self.scale();
        problem.softcap = self.softcap;
        if let Some((first, end, position)) = &self.ranges {
            problem.key_ranges = Some(KeyRanges {
                first,
                end,
                position,
            });
        }
        if let Some((shape, blocked)) = &self.blocked {
            problem.blocked = Some(View::contiguous(blocked, *shape).unwrap());
        }
        let bias = self
            .bias
            .as_ref()
            .map(|(shape, bias)| (*shape, cast::<T>(bias)));
        if let Some((shape, bias)) = &bias {
            problem.bias = Some(View::contiguous(bias, *shape).unwrap());
        }
        problem.alibi = self.alibi.as_deref();
        let sink = self.sink.as_ref().map(|sink| cast_acc::<T>(sink));
        problem.sink = sink.as_deref();
        problem.dropout = self.dropout;
        if let Some(isa) = self.isa {
            problem.isa = isa;
        }

        // Not zero: every element must be overwritten.
        let junk = T::from_f64(f64::NAN);
        let acc_junk = T::acc(f64::NAN);
        let mut out = vec![junk; self.rows() * self.d_v];
        let mut lse = vec![acc_junk; self.rows()];
        let mut kept = KeptWeights::default();
        let view = ViewMut::contiguous(&mut out, out_shape).unwrap();
        match keeping {
            false => forward(&problem, view, &mut lse).unwrap(),
            true => forward_keeping(&problem, view, &mut lse, &mut kept).unwrap(),
        }
        let suits = self.keys <= 64 && self.queries > 4 && self.softcap.is_none();
        assert_eq!(kept.is_empty(), !(keeping && suits));

        let grad_out = cast::<T>(&self.grad_out);
        let grad_lse = self.grad_lse.as_ref().map(|grad| cast_acc::<T>(grad));
        let (mut dq, mut dk, mut dv) = (
            vec![junk; q.len()],
            vec![junk; k.len()],
            vec![junk; v.len()],
        );
        let mut dbias = vec![junk; bias.as_ref().map_or(0, |(_, bias)| bias.len())];
        let mut dsink = vec![acc_junk; sink.as_ref().map_or(0, Vec::len)];
        backward(
            &problem,
            &Saved {
                out: View::contiguous(&out, out_shape).unwrap(),
                lse: &lse,
                kept: keeping.then_some(&kept),
                grad_out: View::contiguous(&grad_out, out_shape).unwrap(),
                grad_lse: grad_lse.as_deref(),
            },
            Gradients {
                query: Some(ViewMut::contiguous(&mut dq, query).unwrap()),
                key: Some(ViewMut::contiguous(&mut dk, key).unwrap()),
                value: Some(ViewMut::contiguous(&mut dv, value).unwrap()),
                bias: bias
                    .as_ref()
                    .map(|(shape, _)| ViewMut::contiguous(&mut dbias, *shape).unwrap()),
                sink: self.sink.is_some().then_some(&mut dsink[..]),
            },
        )
        .unwrap();
        Answer {
            out: widen(&out),
            lse: widen_acc(&lse),
            dq: widen(&dq),
            dk: widen(&dk),
            dv: widen(&dv),
            dbias: widen(&dbias),
            dsink: widen_acc(&dsink),
        }
    }

    /// The plain loop's answer.
    pub fn reference(&self) -> Answer {
        let scale = self.scale();
        let group = self.heads / self.kv_heads.max(1);
        let (nq, nk) = (self.queries, self.keys);
        let mut answer = Answer {
            out: vec![0.0; self.rows() * self.d_v],
            lse: vec![0.0; self.rows()],
            dq: vec![0.0; self.q.len()],
            dk: vec![0.0; self.k.len()],
            dv: vec![0.0; self.v.len()],
            dbias: vec![0.0; self.bias.as_ref().map_or(0, |(_, bias)| bias.len())],
            dsink: vec![0.0; self.sink.as_ref().map_or(0, Vec::len)],
        };
        let mut scores = vec![f64::NEG_INFINITY; nk];
        let mut slopes = vec![1.0; nk];
        for b in 0..self.batch {
            for h in 0..self.heads {
                let kv = b * self.kv_heads + h / group;
                for i in 0..nq {
                    let row = (b * self.heads + h) * nq + i;
                    let (first, end, position) = self.range(b, i);
                    let q = &self.q[row * self.d_k..][..self.d_k];
                    let sees = |j: usize| {
                        first <= j
                            && j < end
                            && self.blocked.as_ref().is_none_or(|(shape, blocked)| {
                                blocked[broadcast(*shape, [b, h, i, j])] == 0
                            })
                    };
                    let mut highest = f64::NEG_INFINITY;
                    for j in 0..nk {
                        scores[j] = f64::NEG_INFINITY;
                        if !sees(j) {
                            continue;
                        }
                        let k = &self.k[(kv * nk + j) * self.d_k..][..self.d_k];
                        let mut s: f64 = q.iter().zip(k).map(|(q, k)| q * scale * k).sum();
                        if let Some(cap) = self.softcap {
                            let t = (s / cap).tanh();
                            s = cap * t;
                            slopes[j] = 1.0 - t * t;
                        }
                        if let Some((shape, bias)) = &self.bias {
                            s += bias[broadcast(*shape, [b, h, i, j])];
                        }
                        if let Some(alibi) = &self.alibi {
                            s -= f64::from(alibi[h]) * (position - j as i64).abs() as f64;
                        }
                        scores[j] = s;
                        highest = highest.max(s);
                    }
                    let sink = self.sink.as_ref().map_or(f64::NEG_INFINITY, |sink| sink[h]);
                    highest = highest.max(sink);
                    if highest == f64::NEG_INFINITY {
                        answer.lse[row] = f64::NEG_INFINITY;
                        continue;
                    }
                    let sum: f64 = scores
                        .iter()
                        .chain([&sink])
                        .map(|s| (s - highest).exp())
                        .sum();
                    let lse = highest + sum.ln();
                    answer.lse[row] = lse;
                    let factor = |j: usize| match self.dropout {
                        None => 1.0,
                        Some(d)
                            if kernels::dropout::dropped(
                                d.seed,
                                row as u32,
                                j as u32,
                                d.probability,
                            ) =>
                        {
                            0.0
                        }
                        Some(d) => 1.0 / (1.0 - d.probability),
                    };
                    let grad = &self.grad_out[row * self.d_v..][..self.d_v];
                    // What the weights' gradients are compared with.
                    let mut delta = -self.grad_lse.as_ref().map_or(0.0, |grad| grad[row]);
                    for j in 0..nk {
                        if scores[j] == f64::NEG_INFINITY {
                            continue;
                        }
                        let weight = (scores[j] - lse).exp();
                        let kept = weight * factor(j);
                        let v = &self.v[(kv * nk + j) * self.d_v..][..self.d_v];
                        for c in 0..self.d_v {
                            answer.out[row * self.d_v + c] += kept * v[c];
                            answer.dv[(kv * nk + j) * self.d_v + c] += kept * grad[c];
                            delta += kept * v[c] * grad[c];
                        }
                    }
                    for j in 0..nk {
                        if scores[j] == f64::NEG_INFINITY {
                            continue;
                        }
                        let weight = (scores[j] - lse).exp();
                        let v = &self.v[(kv * nk + j) * self.d_v..][..self.d_v];
                        let dp: f64 = v.iter().zip(grad).map(|(v, g)| v * g).sum();
                        let mut ds = weight * (factor(j) * dp - delta);
                        if let Some((shape, _)) = &self.bias {
                            answer.dbias[broadcast(*shape, [b, h, i, j])] += ds;
                        }
                        if self.softcap.is_some() {
                            ds *= slopes[j];
                        }
                        for c in 0..self.d_k {
                            let k = (kv * nk + j) * self.d_k + c;
                            answer.dq[row * self.d_k + c] += scale * ds * self.k[k];
                            answer.dk[k] += scale * ds * q[c];
                        }
                    }
                    if sink > f64::NEG_INFINITY {
                        answer.dsink[h] -= (sink - lse).exp() * delta;
                    }
                }
            }
        }
        answer
    }

    /// Compares the kernels' answer with the loop's.
    pub fn check<T: Number>(&self, tolerance: f64) {
        self.check_above::<T>(tolerance, 0.0);
    }

    /// As [`Case::check`]; parts whose root mean square is below `floor` may err by as much as one of that size.
    pub fn check_above<T: Number>(&self, tolerance: f64, floor: f64) {
        let case = self.clone().round::<T>();
        let right = case.reference();
        case.check_one(&case.solve_with::<T>(false), &right, tolerance, floor);
        if case.keys <= 64 {
            case.check_one(&case.solve_with::<T>(true), &right, tolerance, floor);
        }
    }

    fn check_one(&self, found: &Answer, right: &Answer, tolerance: f64, floor: f64) {
        for ((name, found), (_, right)) in found.parts().into_iter().zip(right.parts()) {
            // Gradients at scores sum to zero over the keys, or nearly: what is left of a sum over all of them is
            // mostly rounding.
            let cancels = name == "dsink"
                || name == "dbias" && self.bias.as_ref().is_some_and(|(shape, _)| shape[3] == 1);
            let error = if cancels {
                let distance = found
                    .iter()
                    .zip(right)
                    .map(|(x, y)| (x - y).abs())
                    .fold(0.0, f64::max);
                distance / 10.0 / (self.rows() as f64).sqrt()
            } else {
                error(found, right, floor)
            };
            assert!(
                error <= tolerance,
                "{name}: error {error:e}, allowed {tolerance:e}; {}",
                self.describe()
            );
        }
    }

    pub fn describe(&self) -> String {
        format!(
            "b {} h {}/{} q {} k {} d {}/{} scale {:?} softcap {:?} ranges {} blocked {:?} bias {:?} alibi {} sink {} dropout {:?} grad_lse {} {:?}",
            self.batch,
            self.heads,
            self.kv_heads,
            self.queries,
            self.keys,
            self.d_k,
            self.d_v,
            self.scale,
            self.softcap,
            self.ranges.is_some(),
            self.blocked.as_ref().map(|x| x.0),
            self.bias.as_ref().map(|x| x.0),
            self.alibi.is_some(),
            self.sink.is_some(),
            self.dropout,
            self.grad_lse.is_some(),
            self.isa,
        )
    }
}

/// Whether two slices hold the same bits, or no number in the same places.
fn same(x: &[f64], y: &[f64]) -> bool {
    x.iter()
        .zip(y)
        .all(|(x, y)| x == y || x.is_nan() && y.is_nan())
}

/// The position in a contiguous tensor that broadcasts to the index.
pub fn broadcast(shape: [usize; 4], index: [usize; 4]) -> usize {
    let mut at = 0;
    for axis in 0..4 {
        at = at * shape[axis] + if shape[axis] == 1 { 0 } else { index[axis] };
    }
    at
}
