use macerator::{Arch, WithSimd};

/// The vector instructions that the kernels run on.
///
/// [`Isa::best`] is chosen at run time. The others are for tests and measurements: every member of
/// [`Isa::available`] gives the same result to rounding.
///
/// # Example
///
/// ```
/// use kernels::Isa;
///
/// assert_eq!(Isa::available().next(), Some(Isa::Scalar));
/// assert!(Isa::best().is_available());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// No vector instructions beyond what the compiler finds; on every machine.
    Scalar,
    /// x86-64-v2: 128-bit vectors, no fused multiply-add.
    Sse42,
    /// x86-64-v3: 256-bit vectors.
    Avx2,
    /// x86-64-v4: 512-bit vectors.
    Avx512,
    /// 64-bit Arm: 128-bit vectors.
    Neon,
    /// WebAssembly: 128-bit vectors.
    Wasm128,
}

impl Isa {
    const ALL: [Self; 6] = [
        Self::Scalar,
        Self::Sse42,
        Self::Avx2,
        Self::Avx512,
        Self::Neon,
        Self::Wasm128,
    ];

    /// The widest instructions of this machine.
    pub fn best() -> Self {
        // Under Miri every vector intrinsic would have to be emulated, and not all are.
        if cfg!(miri) {
            return Self::Scalar;
        }
        Self::available().last().unwrap_or(Self::Scalar)
    }

    /// The instruction sets of this machine, the narrowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Whether this machine has these instructions.
    pub fn is_available(self) -> bool {
        self.arch().is_some()
    }

    /// The library's name for it, if this machine has it.
    fn arch(self) -> Option<Arch> {
        // The best of the machine includes the narrower ones of its family.
        let best = Arch::detect();
        match self {
            Self::Scalar => Some(Arch::Scalar),
            #[cfg(target_arch = "x86_64")]
            Self::Sse42 => (!matches!(best, Arch::Scalar)).then_some(Arch::V2),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => (!matches!(best, Arch::Scalar | Arch::V2)).then_some(Arch::V3),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                (!matches!(best, Arch::Scalar | Arch::V2 | Arch::V3)).then_some(Arch::V4)
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => (!matches!(best, Arch::Scalar)).then_some(Arch::NeonFma),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Self::Wasm128 => (!matches!(best, Arch::Scalar)).then_some(Arch::Simd128Fallback),
            _ => {
                let _ = best;
                None
            }
        }
    }

    /// Runs `op` compiled for these instructions; for the scalar code where the machine lacks them.
    pub(crate) fn dispatch<Op: WithSimd>(self, op: Op) -> Op::Output {
        let arch = self.arch().unwrap_or(Arch::Scalar);
        // SAFETY: `arch` names only what detection has found.
        unsafe { arch.dispatch(op) }
    }
}
