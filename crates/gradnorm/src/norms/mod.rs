//! L2 norms of a model's gradients, by parameter.

mod collect;
mod squares;

pub(crate) use squares::sum_dtype;

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Display};

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Gradients;
use serde::{Serialize, Serializer};

use crate::PathPattern;

/// The L2 norm of the gradient of every parameter of a model, by the parameter's path.
///
/// Norms are those of the gradients given: before clipping, if they have not been clipped. Squares
/// are summed in f64 on devices that compute in f64 and in f32 on others, whatever the type of the
/// gradients, and scaled where they would overflow or vanish: gradients of 1e25 or 1e-25 have a
/// norm. NaN and infinity are kept, see [`non_finite`](Self::non_finite).
///
/// All norms are read in one transfer from the device (one from each device, for a model spread
/// over several). Paths are those of Burn's module visitor, joined with dots:
/// `attention.query.weight`, `layers.0.bias`. Integer and boolean parameters have no gradient and
/// are left out. A parameter that the model holds at several paths (one `ParamId`: tied weights) is
/// listed at each and counted once in every sum.
///
/// # Example
///
/// ```
/// use burn::module::{Module, Param};
/// use burn::tensor::{Device, Tensor};
/// use gradnorm::GradientNorms;
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
/// let norms = GradientNorms::of(&model, &loss.backward());
///
/// assert_eq!(norms.get("slope"), Some(3.0));
/// assert_eq!(norms.get("offset"), Some(4.0));
/// assert_eq!(norms.global(), 5.0);
/// ```
#[derive(Debug, Clone)]
pub struct GradientNorms {
    params: Vec<ParamNorm>,
    missing: Vec<String>,
    frozen: Vec<String>,
}

#[derive(Debug, Clone)]
struct ParamNorm {
    path: String,
    id: ParamId,
    norm: f64,
}

impl GradientNorms {
    /// Measures the gradients that `loss.backward()` gave; they stay as they are.
    pub fn of<M: Module>(model: &M, grads: &Gradients) -> Self {
        collect::collect(model, grads)
    }

    /// Measures gradients on their way to an optimizer; they stay as they are.
    ///
    /// # Panics
    ///
    /// If a gradient registered for one of the model's parameters has not that parameter's rank.
    pub fn of_params<M: Module>(model: &M, grads: &GradientsParams) -> Self {
        collect::collect(model, grads)
    }

    /// The L2 norm of all gradients taken as one vector; 0 if there is none.
    pub fn global(&self) -> f64 {
        self.group(|_| true).unwrap_or(0.0)
    }

    /// The norm of one parameter's gradient, or `None` if no parameter of that path has a gradient.
    pub fn get(&self, path: &str) -> Option<f64> {
        let param = self.params.iter().find(|param| param.path == path)?;
        Some(param.norm)
    }

    /// The L2 norm of the gradients whose paths `select` accepts, taken as one vector.
    ///
    /// `None` if it accepts no parameter that has a gradient: a group that is not there is not a
    /// group of norm 0.
    ///
    /// # Example
    ///
    /// ```
    /// # use gradnorm::GradientNorms;
    /// fn weights_only(norms: &GradientNorms) -> Option<f64> {
    ///     norms.group(|path| path.ends_with(".weight"))
    /// }
    /// ```
    pub fn group(&self, select: impl Fn(&str) -> bool) -> Option<f64> {
        let mut counted = HashSet::new();
        let norms: Vec<f64> = self
            .params
            .iter()
            .filter(|param| select(&param.path) && counted.insert(param.id))
            .map(|param| param.norm)
            .collect();
        (!norms.is_empty()).then(|| squares::norm_of(norms.iter().copied()))
    }

    /// The L2 norm of the gradients whose paths match, as [`group`](Self::group) gives it.
    pub fn matching(&self, pattern: impl Into<PathPattern>) -> Option<f64> {
        let pattern = pattern.into();
        self.group(|path| pattern.matches(path))
    }

    /// The norms of several groups, each a name and a [`PathPattern`]: what a log's record takes.
    ///
    /// # Example
    ///
    /// ```
    /// # use gradnorm::GradientNorms;
    /// # use std::collections::BTreeMap;
    /// fn by_projection(norms: &GradientNorms) -> BTreeMap<String, Option<f64>> {
    ///     norms.groups([("query", "**.query.*"), ("key", "**.key.*")])
    /// }
    /// ```
    pub fn groups<N, P>(
        &self,
        groups: impl IntoIterator<Item = (N, P)>,
    ) -> BTreeMap<String, Option<f64>>
    where
        N: Into<String>,
        P: Into<PathPattern>,
    {
        groups
            .into_iter()
            .map(|(name, pattern)| (name.into(), self.matching(pattern)))
            .collect()
    }

    /// Every parameter that has a gradient, and its norm, in the order of the model's fields.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, f64)> + Clone {
        self.params
            .iter()
            .map(|param| (param.path.as_str(), param.norm))
    }

    /// The parameters that require a gradient and have none: no path leads from them to the loss.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// The float parameters that require no gradient and have none: frozen ones, and what a module
    /// keeps without training it, such as the running mean of a batch normalization.
    pub fn frozen(&self) -> &[String] {
        &self.frozen
    }

    /// The parameters whose norm is NaN or infinite.
    pub fn non_finite(&self) -> impl Iterator<Item = (&str, f64)> + Clone {
        self.iter().filter(|(_, norm)| !norm.is_finite())
    }

    /// How many parameters have a gradient.
    pub fn len(&self) -> usize {
        self.params.len()
    }

    /// Whether no parameter has a gradient.
    pub fn is_empty(&self) -> bool {
        self.params.is_empty()
    }
}

/// One line: the global norm, the largest one, and what is missing or not finite.
impl Display for GradientNorms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "gradient norm {} of {} parameters",
            self.global(),
            self.len()
        )?;
        let finite = self.iter().filter(|(_, norm)| norm.is_finite());
        if let Some((path, norm)) = finite.max_by(|a, b| a.1.total_cmp(&b.1)) {
            write!(f, ", largest {path} {norm}")?;
        }
        if !self.missing.is_empty() {
            write!(f, ", without gradient: {}", self.missing.join(", "))?;
        }
        let mut separator = ", not finite: ";
        for (path, norm) in self.non_finite() {
            write!(f, "{separator}{path} {norm}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// A map from path to norm; `null` for parameters that are [`missing`](GradientNorms::missing).
impl Serialize for GradientNorms {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let present = self.iter().map(|(path, norm)| (path, Some(norm)));
        let missing = self.missing.iter().map(|path| (path.as_str(), None));
        serializer.collect_map(present.chain(missing))
    }
}
