use crate::real::Real;
use half::{bf16, f16};
use std::mem::MaybeUninit;

/// A type that queries, keys, values and outputs are stored in: `f32`, `f64`, [`half::f16`] or [`half::bf16`].
pub trait Element:
    sealed::Sealed + Copy + Default + Send + Sync + std::fmt::Debug + 'static
{
    /// The type of scores, softmax and logsumexp: `f64` for `f64`, otherwise `f32`.
    type Acc: Real;

    #[doc(hidden)]
    fn store(data: &[Self]) -> sealed::Store<'_, Self::Acc>;

    #[doc(hidden)]
    fn store_mut(data: &mut [MaybeUninit<Self>]) -> sealed::StoreMut<Self::Acc>;
}

pub(crate) mod sealed {
    use super::{bf16, f16};

    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for f16 {}
    impl Sealed for bf16 {}

    /// A slice whose element type is erased, so that the kernels are compiled once an arithmetic type.
    #[derive(Debug, Clone, Copy)]
    pub enum Store<'a, A> {
        Native(&'a [A]),
        F16(&'a [f16]),
        Bf16(&'a [bf16]),
    }

    /// The start of a mutable slice whose element type is erased.
    #[derive(Debug, Clone, Copy)]
    pub enum StoreMut<A> {
        Native(*mut A),
        F16(*mut f16),
        Bf16(*mut bf16),
    }
}

use sealed::{Store, StoreMut};

macro_rules! element {
    ($($ty:ty, $acc:ty, $variant:ident;)*) => {$(
        impl Element for $ty {
            type Acc = $acc;

            fn store(data: &[Self]) -> Store<'_, $acc> {
                Store::$variant(data)
            }

            fn store_mut(data: &mut [MaybeUninit<Self>]) -> StoreMut<$acc> {
                StoreMut::$variant(data.as_mut_ptr().cast())
            }
        }
    )*};
}

element! {
    f32, f32, Native;
    f64, f64, Native;
    f16, f32, F16;
    bf16, f32, Bf16;
}
