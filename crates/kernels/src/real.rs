//! The arithmetic types and the functions of vectors that the kernels need.

use crate::Element;
use crate::backward::{Incoming, Wanted};
use crate::context::Context;
use crate::erased::{Shared, Target};
use crate::kept::KeptTiles;
use crate::product::Product;
use crate::transpose::Square;
use macerator::{
    ReduceAdd, ReduceMax, Scalar, Simd, VAdd, VDiv, VMaskReduce, VMul, VMulAdd, VOrd, VSelect,
    VSub, Vector, WithSimd,
};
use std::mem::MaybeUninit;
use std::ops::{AddAssign, MulAssign, Neg};

/// The arithmetic types: `f32` and `f64`.
///
/// Sealed; its methods are the kernels' own.
pub trait Real:
    Element<Acc = Self>
    + Scalar
    + VAdd
    + VSub
    + VMul
    + VDiv
    + VMulAdd
    + VOrd
    + VSelect
    + VMaskReduce
    + ReduceAdd
    + ReduceMax
    + PartialOrd
    + AddAssign
    + MulAssign
    + Neg<Output = Self>
    + Into<f64>
{
    #[doc(hidden)]
    const ZERO: Self;
    #[doc(hidden)]
    const ONE: Self;
    #[doc(hidden)]
    const INFINITY: Self;
    #[doc(hidden)]
    const LOG2_E: Self;

    #[doc(hidden)]
    fn from_f64(x: f64) -> Self;

    #[doc(hidden)]
    fn from_f32(x: f32) -> Self;

    /// From a length or a distance between positions; exact below 2^24 for `f32`.
    #[doc(hidden)]
    fn from_i64(x: i64) -> Self;

    /// The forward pass for this type: not generic, so that it is compiled with this crate, optimised as this crate is.
    #[doc(hidden)]
    fn forward(
        ctx: &Context<'_, Self>,
        out: Target<'_, Self>,
        lse: Shared<'_, Self>,
        kept: Option<KeptTiles<'_, Self>>,
    );

    /// The backward pass for this type.
    #[doc(hidden)]
    fn backward(ctx: &Context<'_, Self>, saved: &Incoming<'_, Self>, wanted: &Wanted<'_, Self>);

    /// A product of matrices of this type.
    #[doc(hidden)]
    fn product(product: &Product<'_, Self>);

    /// Turns a square over.
    #[doc(hidden)]
    fn transpose<S: Simd>(square: &mut Square<Self>);

    /// `ln(2)` and what rounding takes from it.
    #[doc(hidden)]
    const LN_2: [Self; 2];

    /// The natural logarithm of a positive normal number.
    #[doc(hidden)]
    fn ln<S: Simd>(x: Vector<S, Self>) -> Vector<S, Self>;

    /// 2 to the power of the nearest whole number, and the rest in `[-1/2, 1/2]`.
    #[doc(hidden)]
    fn split<S: Simd>(x: Vector<S, Self>) -> (Vector<S, Self>, Vector<S, Self>);

    /// 2 to the power `x` for `x` up to 127; exactly 0 where that is half the smallest normal number or less, exactly 1
    /// at 0.
    #[doc(hidden)]
    fn exp2<S: Simd, const N: usize>(x: [Vector<S, Self>; N]) -> [Vector<S, Self>; N];

    /// 2 to the power `x`, minus 1, for `x` in `[-64, 64]`.
    #[doc(hidden)]
    fn exp2_m1<S: Simd>(x: Vector<S, Self>) -> Vector<S, Self>;
}

/// A vector of the instruction set `S`.
pub(crate) type V<S, A> = Vector<S, A>;

/// Runs `op` as a function of its own within code that already runs under `S`.
///
/// Everything else in the kernels is inlined, as a plain function would lose the vector instructions. This keeps the
/// larger parts from being compiled once for each of their callers.
#[inline(always)]
pub(crate) fn call<S: Simd, Op: WithSimd>(op: Op) -> Op::Output {
    // SAFETY: code generic over `S` is entered through `Isa::dispatch` only, which has found the instructions.
    unsafe { S::vectorize(op) }
}

#[inline(always)]
pub(crate) fn splat<S: Simd, A: Real>(x: A) -> V<S, A> {
    x.splat::<S>()
}

#[inline(always)]
pub(crate) fn lanes<S: Simd, A: Real>() -> usize {
    A::lanes::<S>()
}

/// The vector at `data[at..]`.
#[inline(always)]
pub(crate) fn load<S: Simd, A: Real>(data: &[A], at: usize) -> V<S, A> {
    let from = &data[at..at + lanes::<S, A>()];
    // SAFETY: `from` has one vector's elements.
    unsafe { A::vload_unaligned(from.as_ptr()) }
}

/// Writes a vector to `data[at..]`.
#[inline(always)]
pub(crate) fn store<S: Simd, A: Real>(data: &mut [A], at: usize, value: V<S, A>) {
    let to = &mut data[at..at + lanes::<S, A>()];
    // SAFETY: `to` has one vector's elements.
    unsafe { A::vstore_unaligned(to.as_mut_ptr(), value) }
}

/// Writes a vector to `data[at..]`, which may hold nothing yet.
#[inline(always)]
pub(crate) fn store_new<S: Simd, A: Real>(data: &mut [MaybeUninit<A>], at: usize, value: V<S, A>) {
    let to = &mut data[at..at + lanes::<S, A>()];
    // SAFETY: `to` has room for one vector's elements.
    unsafe { A::vstore_unaligned(to.as_mut_ptr().cast(), value) }
}

/// `a * b + c`, fused where there is an instruction for it.
#[inline(always)]
pub(crate) fn mul_add<S: Simd, A: Real>(a: V<S, A>, b: V<S, A>, c: V<S, A>) -> V<S, A> {
    // The scalar backend would call the C library for every lane.
    if <A as VMulAdd>::is_accelerated::<S>() {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// The larger of `x` and `lowest`; `x` where that is no number.
#[inline(always)]
pub(crate) fn at_least<S: Simd, A: Real>(x: V<S, A>, lowest: A) -> V<S, A> {
    let lowest = splat::<S, A>(lowest);
    // One instruction on x86, which gives the second operand if one is no number; elsewhere the maximum may lose it.
    if cfg!(target_arch = "x86_64") && S::lanes32() >= 4 {
        lowest.max(x)
    } else {
        x.lt(lowest).select(lowest, x)
    }
}

/// The hyperbolic tangent, good to about two units in the last place, also near 0.
#[inline(always)]
pub(crate) fn tanh<S: Simd, A: Real>(x: V<S, A>) -> V<S, A> {
    // tanh(x) = e / (e + 2) with e = exp(2x) - 1, which is accurate near 0. 1 to rounding from 20 on.
    // NaN falls through the comparisons.
    let limit = splat::<S, A>(A::from_f64(20.0));
    let x = x.gt(limit).select(limit, x);
    let low = splat::<S, A>(A::from_f64(-20.0));
    let x = x.lt(low).select(low, x);
    let e = A::exp2_m1(x * splat(A::from_f64(2.0 * std::f64::consts::LOG2_E)));
    e / (e + splat(A::from_f64(2.0)))
}

/// `ln(2)` is the sum of these to twice the digits of f64.
const LN_2: f64 = std::f64::consts::LN_2;
const LN_2_REST: f64 = 2.319_046_813_846_299_6e-17;

/// Horner's rule, the highest coefficient last; of several vectors step by step, so that the latency of one hides behind
/// the others.
#[inline(always)]
fn polynomial<S: Simd, A: Real, const M: usize, const N: usize>(
    x: [V<S, A>; M],
    coefficients: [A; N],
) -> [V<S, A>; M] {
    let mut sums = [splat::<S, A>(coefficients[N - 1]); M];
    for k in (0..N - 1).rev() {
        for m in 0..M {
            sums[m] = mul_add(sums[m], x[m], splat(coefficients[k]));
        }
    }
    sums
}

// The polynomials are relative minimax fits (Remez, 40 digits and more) on [-1/2, 1/2]: of 2^x with error 9.1e-8, among
// those that are 1 at 0, and 3.1e-18, of (2^x - 1) / x with 2.3e-10 and 2.3e-19.
macro_rules! real {
    ($ty:ident, $int:ident, $mantissa:literal, $magic:literal, $zero:literal, $transpose:ident, $log:expr,
     $exp2:expr, $exp2_m1:expr) => {
        #[allow(clippy::excessive_precision, clippy::approx_constant)] // fits as computed, rounded once
        impl Real for $ty {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const INFINITY: Self = $ty::INFINITY;
            const LOG2_E: Self = std::$ty::consts::LOG2_E;

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $ty
            }

            #[inline(always)]
            fn from_f32(x: f32) -> Self {
                x as $ty
            }

            #[inline(always)]
            fn from_i64(x: i64) -> Self {
                x as $ty
            }

            const LN_2: [Self; 2] = [
                std::$ty::consts::LN_2,
                (LN_2 - std::$ty::consts::LN_2 as f64 + LN_2_REST) as $ty,
            ];

            #[inline(always)]
            fn transpose<S: Simd>(square: &mut Square<Self>) {
                square.$transpose::<S>();
            }

            #[inline(always)]
            fn ln<S: Simd>(x: V<S, Self>) -> V<S, Self> {
                // A power of 2 and a number in [sqrt(1/2), sqrt(2)): the exponent's bits less those of sqrt(1/2).
                let root = splat::<S, $ty>(std::$ty::consts::FRAC_1_SQRT_2).reinterpret::<$int>();
                let bits = x.reinterpret::<$int>() - root;
                let exponent = bits >> $mantissa;
                let rest = (x.reinterpret::<$int>() - (exponent << $mantissa)).reinterpret::<$ty>();
                // The exponent as a float, by the trick of `split` backwards.
                let magic = splat::<S, $ty>($magic);
                let exponent =
                    (exponent + magic.reinterpret::<$int>()).reinterpret::<$ty>() - magic;
                // ln((1 + s) / (1 - s)) = 2 (s + s^3 / 3 + s^5 / 5 + ...)
                let one = splat::<S, $ty>(1.0);
                let s = (rest - one) / (rest + one);
                let square = s * s;
                let log = (s + s) * mul_add(square, polynomial([square], $log)[0], one);
                mul_add(
                    exponent,
                    splat(Self::LN_2[0]),
                    mul_add(exponent, splat(Self::LN_2[1]), log),
                )
            }

            fn forward(
                ctx: &Context<'_, Self>,
                out: Target<'_, Self>,
                lse: Shared<'_, Self>,
                kept: Option<KeptTiles<'_, Self>>,
            ) {
                crate::forward::run(ctx, out, lse, kept);
            }

            fn backward(
                ctx: &Context<'_, Self>,
                saved: &Incoming<'_, Self>,
                wanted: &Wanted<'_, Self>,
            ) {
                crate::backward::run(ctx, saved, wanted);
            }

            fn product(product: &Product<'_, Self>) {
                crate::product::run(product);
            }

            #[inline(always)]
            fn split<S: Simd>(x: V<S, Self>) -> (V<S, Self>, V<S, Self>) {
                // The sum is so large that its last bit is worth 1: it rounds, and in its low bits is the integer, already
                // with the bias of an exponent.
                let magic = splat::<S, $ty>($magic - $zero);
                let shifted = x + magic;
                let rest = x - (shifted - magic);
                let whole = shifted.reinterpret::<$int>() << $mantissa;
                (whole.reinterpret::<$ty>(), rest)
            }

            #[inline(always)]
            fn exp2<S: Simd, const N: usize>(mut x: [V<S, Self>; N]) -> [V<S, Self>; N] {
                let mut whole = x;
                for n in 0..N {
                    // The power of an exponent of all zeros is 0, and of a masked score nothing may be left.
                    (whole[n], x[n]) = Self::split(at_least::<S, $ty>(x[n], $zero));
                }
                let mut powers = polynomial(x, $exp2);
                for n in 0..N {
                    powers[n] *= whole[n];
                }
                powers
            }

            #[inline(always)]
            fn exp2_m1<S: Simd>(x: V<S, Self>) -> V<S, Self> {
                let (whole, rest) = Self::split(x);
                let less_one = rest * polynomial([rest], $exp2_m1)[0];
                mul_add(whole, less_one, whole - splat(1.0))
            }
        }
    };
}

real!(
    f32,
    i32,
    23,
    12_582_912.0,
    -127.0,
    transpose,
    [1.0 / 3.0, 0.2, 1.0 / 7.0, 1.0 / 9.0, 1.0 / 11.0],
    [
        1.0,
        0.693_146_977_602_520_62,
        0.240_222_420_854_954_11,
        0.055_507_337_372_463_386,
        0.009_671_512_639_838_019_6,
        0.001_326_472_909_586_127_0,
    ],
    [
        0.693_147_180_581_569_2,
        0.240_226_509_200_514_8,
        0.055_504_107_275_966_86,
        0.009_618_057_037_027_048,
        0.001_333_366_945_204_131_6,
        0.000_154_613_298_913_933_86,
        0.000_015_252_719_680_333_748,
    ]
);

real!(
    f64,
    i64,
    52,
    6_755_399_441_055_744.0,
    -1023.0,
    transpose,
    [
        1.0 / 3.0,
        0.2,
        1.0 / 7.0,
        1.0 / 9.0,
        1.0 / 11.0,
        1.0 / 13.0,
        1.0 / 15.0,
        1.0 / 17.0,
        1.0 / 19.0,
        1.0 / 21.0,
    ],
    [
        0.999_999_999_999_999_997_1,
        0.693_147_180_559_945_330_46,
        0.240_226_506_959_101_562_05,
        0.055_504_108_664_819_921_483,
        0.009_618_129_107_588_335_083,
        0.001_333_355_814_678_995_032,
        0.000_154_035_304_625_146_130_26,
        0.000_015_252_733_489_960_804_6,
        1.321_543_308_959_462_903_7e-6,
        1.017_819_803_332_852_766_2e-7,
        7.074_105_626_245_659_370_8e-9,
        4.435_280_944_610_336_161_1e-10,
    ],
    [
        0.693_147_180_559_945_309_26,
        0.240_226_506_959_100_712_86,
        0.055_504_108_664_821_626_543,
        0.009_618_129_107_628_436_948,
        0.001_333_355_814_640_662_979_8,
        0.000_154_035_303_934_661_687_03,
        0.000_015_252_733_841_378_451_98,
        1.321_548_672_135_754_481_5e-6,
        1.017_805_716_929_630_259_6e-7,
        7.054_932_272_250_291_431_5e-9,
        4.455_804_852_884_968_282_7e-10,
        2.567_842_788_900_702_593_4e-11,
    ]
);
