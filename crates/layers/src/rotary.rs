//! Rotary position embedding: queries and keys turned by their positions.

use core::f64::consts::TAU;

use burn::config::Config;
use burn::tensor::{DType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::error::{AttentionError, expect, value_error};

/// Which two components of a head turn together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotaryLayout {
    /// Component `i` with component `i + d / 2`, as GPT-NeoX and Llama in Hugging Face's layout.
    #[default]
    HalfSplit,
    /// Component `2 i` with component `2 i + 1`, as the paper, GPT-J and Meta's Llama.
    Interleaved,
}

/// How the frequencies change for lengths beyond those of training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotaryScaling {
    /// As trained.
    #[default]
    None,
    /// All positions divided by a factor
    /// ([position interpolation](https://arxiv.org/abs/2306.15595)).
    Linear {
        /// How many times longer.
        factor: f64,
    },
    /// The base raised to `base * factor^(d / (d - 2))`: the slowest component turns as under
    /// `Linear`, the fastest as trained ([YaRN](https://arxiv.org/abs/2309.00071), section 3.1).
    Ntk {
        /// How many times longer.
        factor: f64,
    },
    /// Slow components interpolated, fast ones left, a ramp between, and rotated vectors made
    /// longer by `0.1 ln(factor) + 1` ([YaRN](https://arxiv.org/abs/2309.00071), section 3.4), with
    /// the paper's ramp from 32 turns to 1 turn within the trained length.
    Yarn {
        /// How many times longer.
        factor: f64,
        /// The length of training.
        original_length: usize,
    },
}

/// Turns that YaRN's ramp begins and ends with.
const YARN_FAST_TURNS: f64 = 32.0;
const YARN_SLOW_TURNS: f64 = 1.0;

/// Configuration of [`RotaryEmbedding`].
///
/// # Example
///
/// ```
/// use layers::{RotaryConfig, RotaryLayout};
///
/// let rotary = RotaryConfig::new()
///     .with_layout(RotaryLayout::Interleaved)
///     .with_dimensions(Some(32))
///     .init(64);
/// assert_eq!(rotary.dimensions(), 32);
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct RotaryConfig {
    /// How many leading components of a head turn; the others stay. Default: all.
    pub dimensions: Option<usize>,
    /// The base of the wavelengths: component pair `i` turns by `base^(-2 i / dimensions)` a
    /// position. Default: 10000.
    #[config(default = 10000.0)]
    pub base: f64,
    /// Which two components turn together. Default: half-split.
    #[config(default = "RotaryLayout::HalfSplit")]
    pub layout: RotaryLayout,
    /// How frequencies change for longer inputs. Default: not at all.
    #[config(default = "RotaryScaling::None")]
    pub scaling: RotaryScaling,
}

/// Rotary position embedding ([RoFormer](https://arxiv.org/abs/2104.09864), section 3.2.2): each
/// pair of components turns by an angle proportional to the position, so that `query . key` depends
/// on the distance alone.
///
/// Angles are computed in f64, for any position; there is no table to outgrow.
///
/// Created with [`RotaryConfig`].
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryEmbedding {
    /// Angle a position, one a pair.
    frequencies: Vec<f64>,
    layout: RotaryLayout,
    /// The factor on the length of rotated vectors.
    magnitude: f64,
}

impl RotaryConfig {
    /// The embedding for heads of width `d_head`.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_init`](Self::try_init) returns.
    pub fn init(&self, d_head: usize) -> RotaryEmbedding {
        expect(self.try_init(d_head))
    }

    /// The embedding for heads of width `d_head`, or what is wrong with the configuration.
    ///
    /// # Errors
    ///
    /// If the number of dimensions is odd, 0 or above `d_head`, or a number is not positive.
    ///
    /// ```
    /// let error = layers::RotaryConfig::new().try_init(5).unwrap_err();
    /// assert_eq!(error.to_string(), "rotary: dimensions is 5, but must be even");
    /// ```
    pub fn try_init(&self, d_head: usize) -> Result<RotaryEmbedding, AttentionError> {
        let dimensions = self.dimensions.unwrap_or(d_head);
        let refuse = |reason: String| Err(value_error("rotary: dimensions", dimensions, reason));
        if dimensions == 0 {
            return refuse("but must be at least 2".into());
        }
        if dimensions % 2 == 1 {
            return refuse("but must be even".into());
        }
        if dimensions > d_head {
            return refuse(format!("but d_head is {d_head}"));
        }
        if !(self.base > 1.0 && self.base.is_finite()) {
            return Err(value_error(
                "rotary: base",
                self.base,
                "but must be above 1 and finite",
            ));
        }
        if let RotaryScaling::Linear { factor }
        | RotaryScaling::Ntk { factor }
        | RotaryScaling::Yarn { factor, .. } = self.scaling
            && !(factor >= 1.0 && factor.is_finite())
        {
            return Err(value_error(
                "rotary: scaling factor",
                factor,
                "but must be at least 1 and finite",
            ));
        }
        if matches!(self.scaling, RotaryScaling::Ntk { .. }) && dimensions < 4 {
            return refuse("but NTK scaling needs at least 4".into());
        }
        let magnitude = match self.scaling {
            RotaryScaling::Yarn { factor, .. } => 0.1 * factor.ln() + 1.0,
            _ => 1.0,
        };
        Ok(RotaryEmbedding {
            frequencies: self.frequencies(dimensions as f64),
            layout: self.layout,
            magnitude,
        })
    }

    fn frequencies(&self, dimensions: f64) -> Vec<f64> {
        let base = match self.scaling {
            RotaryScaling::Ntk { factor } => {
                self.base * factor.powf(dimensions / (dimensions - 2.0))
            }
            _ => self.base,
        };
        let pairs = dimensions as usize / 2;
        let frequency = |pair: usize| base.powf(-2.0 * pair as f64 / dimensions);
        // The pair, as a real number, that makes this many turns within the trained length.
        let pair_of = |turns: f64, length: usize| {
            dimensions * (length as f64 / (turns * TAU)).ln() / (2.0 * base.ln())
        };
        (0..pairs)
            .map(|pair| match self.scaling {
                RotaryScaling::None | RotaryScaling::Ntk { .. } => frequency(pair),
                RotaryScaling::Linear { factor } => frequency(pair) / factor,
                RotaryScaling::Yarn {
                    factor,
                    original_length,
                } => {
                    let low = pair_of(YARN_FAST_TURNS, original_length).floor().max(0.0);
                    let high = pair_of(YARN_SLOW_TURNS, original_length)
                        .ceil()
                        .min(dimensions - 1.0);
                    let width = (high - low).max(1e-3);
                    let interpolated = ((pair as f64 - low) / width).clamp(0.0, 1.0);
                    frequency(pair) * (interpolated / factor + 1.0 - interpolated)
                }
            })
            .collect()
    }
}

impl RotaryEmbedding {
    /// How many components turn.
    pub fn dimensions(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Turns `[batch, heads, length, d_head]` by positions, one list for all samples or one for
    /// each.
    ///
    /// # Panics
    ///
    /// If there are neither 1 nor `batch` lists, or one does not have `length` entries.
    ///
    /// # Example
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use layers::RotaryConfig;
    ///
    /// let x = Tensor::<4>::from_floats([[[[1., 0.], [1., 0.]]]], &Device::default());
    /// let turned = RotaryConfig::new().init(2).apply(x, &[vec![0, 1]]);
    /// let turned: Vec<f32> = turned.into_data().iter().collect();
    /// // The second turns by one radian.
    /// assert_eq!(turned, [1., 0., 1f32.cos(), 1f32.sin()]);
    /// ```
    pub fn apply(&self, tensor: Tensor<4>, positions: &[Vec<i64>]) -> Tensor<4> {
        expect(self.try_apply("tensor", tensor, positions))
    }

    pub(crate) fn try_apply(
        &self,
        argument: &'static str,
        tensor: Tensor<4>,
        positions: &[Vec<i64>],
    ) -> Result<Tensor<4>, AttentionError> {
        let [batch, heads, length, d_head] = tensor.dims();
        if positions.len() != 1 && positions.len() != batch {
            return Err(value_error(
                "positions",
                format!("{} lists", positions.len()),
                format!("but {argument} has a batch of {batch} (or 1 list for all)"),
            ));
        }
        if let Some(list) = positions.iter().find(|list| list.len() != length) {
            return Err(value_error(
                "positions",
                format!("a list of {}", list.len()),
                format!("but {argument} has length {length}"),
            ));
        }
        if batch * heads * length == 0 {
            return Ok(tensor);
        }
        // Half precision would lose the small angles; products of angles stay in f32 or wider.
        let dtype = tensor.dtype();
        let compute = match dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let (cos, sin) = self.tables(positions, length, compute, &tensor.device());
        let dimensions = self.dimensions();
        let rest = (dimensions < d_head).then(|| {
            tensor
                .clone()
                .slice([0..batch, 0..heads, 0..length, dimensions..d_head])
        });
        let turning = match rest {
            Some(_) => tensor.slice([0..batch, 0..heads, 0..length, 0..dimensions]),
            None => tensor,
        };
        let pairs = dimensions / 2;
        // The pairs as an axis of two: behind the components, or before them.
        let (split, axis) = match self.layout {
            RotaryLayout::HalfSplit => ([batch, heads, length, 2, pairs], 3),
            RotaryLayout::Interleaved => ([batch, heads, length, pairs, 2], 4),
        };
        let halves: Tensor<5> = turning.cast(compute).reshape(split);
        let half = |index: i64| -> Tensor<4> {
            halves
                .clone()
                .narrow(axis, index as usize, 1)
                .squeeze_dim(axis)
        };
        let (first, second) = (half(0), half(1));
        let turned_first = first.clone() * cos.clone() - second.clone() * sin.clone();
        let turned_second = second * cos + first * sin;
        let turned = Tensor::stack::<5>(vec![turned_first, turned_second], axis)
            .reshape([batch, heads, length, dimensions])
            .cast(dtype);
        Ok(match rest {
            Some(rest) => Tensor::cat(vec![turned, rest], 3),
            None => turned,
        })
    }

    /// Cosines and sines `[1 | batch, 1, length, pairs]`.
    fn tables(
        &self,
        positions: &[Vec<i64>],
        length: usize,
        dtype: DType,
        device: &burn::tensor::Device,
    ) -> (Tensor<4>, Tensor<4>) {
        let shape = [positions.len(), 1, length, self.frequencies.len()];
        let (sines, cosines): (Vec<f64>, Vec<f64>) = positions
            .iter()
            .flatten()
            .flat_map(|&position| {
                self.frequencies.iter().map(move |frequency| {
                    let (sin, cos) = (position as f64 * frequency).sin_cos();
                    (sin * self.magnitude, cos * self.magnitude)
                })
            })
            .unzip();
        let tensor = |list| {
            let data = TensorData::new(list, shape).convert_dtype(dtype);
            Tensor::from_data(data, (device, dtype))
        };
        (tensor(cosines), tensor(sines))
    }
}
