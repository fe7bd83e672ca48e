//! Clipping to a global norm.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::GradientNorms;
use crate::norms::sum_dtype;

/// What clipping found and did.
#[derive(Debug, Clone)]
pub struct Clipped {
    /// The L2 norms before clipping.
    pub norms: GradientNorms,
    /// What every gradient was multiplied by: 1 if they were within the bound and left alone.
    pub factor: f64,
}

impl Clipped {
    /// The global L2 norm before clipping.
    pub fn norm(&self) -> f64 {
        self.norms.global()
    }
}

/// Gradients were not clipped, because their global norm is NaN or infinite.
#[derive(Debug, Clone, thiserror::Error)]
#[error("gradients cannot be clipped: {norms}")]
pub struct NonFiniteNorm {
    /// The L2 norms; [`GradientNorms::non_finite`] names the parameters at fault.
    pub norms: GradientNorms,
}

/// Scales all gradients of a model so that their global L2 norm is at most `max_norm`.
///
/// Unlike Burn's own `GradientClipping`, which bounds each tensor by itself, this keeps the
/// direction of the whole gradient: all tensors are multiplied by `max_norm / norm`. Gradients
/// within the bound are left alone, to the last bit. The product is taken in f32 or wider and
/// rounded once to the gradient's type.
///
/// Gradients in `grads` that belong to no parameter of `model` are neither counted nor scaled.
///
/// # Errors
///
/// [`NonFiniteNorm`] if the norm is NaN or infinite. The gradients are then as they were: no factor
/// makes them usable, so skip the step or stop.
///
/// # Panics
///
/// If `max_norm` is negative or NaN.
///
/// # Example
///
/// ```
/// use burn::module::{Module, Param};
/// use burn::optim::GradientsParams;
/// use burn::tensor::{Device, Tensor};
/// use gradnorm::clip_global_norm;
///
/// #[derive(Module, Debug)]
/// struct Model {
///     slope: Param<Tensor<1>>,
///     offset: Param<Tensor<1>>,
/// }
///
/// let device = Device::default().autodiff();
/// let model = Model {
///     slope: Param::from_data([1.0], &device),
///     offset: Param::from_data([1.0], &device),
/// };
/// let loss = model.slope.val() * 3.0 + model.offset.val() * 4.0;
/// let mut grads = GradientsParams::from_grads(loss.backward(), &model);
///
/// let clipped = clip_global_norm(&model, &mut grads, 1.0)?;
///
/// assert_eq!(clipped.norm(), 5.0);
/// let slope = grads.get::<1>(model.slope.id).unwrap();
/// assert_eq!(slope.into_data().to_vec::<f32>().unwrap(), [0.6]);
/// # Ok::<(), gradnorm::NonFiniteNorm>(())
/// ```
pub fn clip_global_norm<M: Module>(
    model: &M,
    grads: &mut GradientsParams,
    max_norm: f64,
) -> Result<Clipped, NonFiniteNorm> {
    assert!(
        max_norm >= 0.0,
        "max_norm must be 0 or more, but it is {max_norm}"
    );
    let norms = GradientNorms::of_params(model, grads);
    let norm = norms.global();
    if !norm.is_finite() {
        return Err(NonFiniteNorm { norms });
    }
    let mut factor = 1.0;
    if norm > max_norm {
        factor = max_norm / norm;
        model.visit(&mut Scaling {
            grads,
            factor,
            done: HashSet::new(),
        });
    }
    Ok(Clipped { norms, factor })
}

struct Scaling<'a> {
    grads: &'a mut GradientsParams,
    factor: f64,
    /// Tied weights are visited at each of their paths, but have one gradient.
    done: HashSet<ParamId>,
}

impl ModuleVisitor for Scaling<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.done.insert(param.id) {
            return;
        }
        if let Some(grad) = self.grads.remove::<D>(param.id) {
            let dtype = grad.dtype();
            let wide_dtype = sum_dtype(&grad.device());
            let scaled = grad.cast(wide_dtype).mul_scalar(self.factor).cast(dtype);
            self.grads.register(param.id, scaled);
        }
    }
}
