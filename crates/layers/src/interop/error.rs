//! What can be wrong with a checkpoint.

use core::fmt;
use std::path::PathBuf;

use super::layout::Layout;

/// Why weights were not loaded; the module is then as it was.
///
/// Each message names the file and the tensor, and where shapes clash both of them.
///
/// # Example
///
/// ```
/// use layers::{Checkpoint, LoadError};
///
/// let error = Checkpoint::open("weights.npz").unwrap_err();
/// assert!(matches!(error, LoadError::Unreadable { .. }));
/// assert_eq!(
///     error.to_string(),
///     "weights.npz: not a checkpoint by its extension: known are pt, pth, bin, safetensors, bpk"
/// );
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LoadError {
    /// The file, or a tensor in it, cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the reader says.
        reason: String,
    },
    /// The module has a parameter that the file has no tensor for.
    Missing {
        /// The file.
        path: PathBuf,
        /// The full name that the tensor should have.
        tensor: String,
        /// The shape that it should have.
        shape: Vec<usize>,
        /// The parameter of the module, such as `query.weight`.
        parameter: String,
        /// A name in the file that ends the same, where there is one: the prefix may be wrong.
        similar: Option<String>,
    },
    /// The file has a tensor of the layout that the module has no parameter for.
    NotInModule {
        /// The file.
        path: PathBuf,
        /// The full name of the tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The parameter that the module lacks, such as `query.bias`.
        parameter: String,
    },
    /// The module has a parameter that the layout has no name for.
    NotInLayout {
        /// The file.
        path: PathBuf,
        /// The layout.
        layout: Layout,
        /// The parameter of the module, such as `attention.sink`.
        parameter: String,
    },
    /// A tensor has another shape than the module needs.
    Shape {
        /// The file.
        path: PathBuf,
        /// The full name of the tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The shape that the module needs.
        expected: Vec<usize>,
        /// The parameter of the module, such as `query.weight`.
        parameter: String,
    },
    /// A tensor does not hold floating-point numbers.
    DType {
        /// The file.
        path: PathBuf,
        /// The full name of the tensor.
        tensor: String,
        /// Its element type.
        dtype: String,
    },
    /// The file has tensors under the prefix that the layout does not know, so that the layer it
    /// was taken from does something that the module would not.
    Unknown {
        /// The file.
        path: PathBuf,
        /// The layout.
        layout: Layout,
        /// The full names of the tensors.
        tensors: Vec<String>,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, reason } => write!(f, "{}: {reason}", path.display()),
            Self::Missing {
                path,
                tensor,
                shape,
                parameter,
                similar,
            } => {
                let path = path.display();
                write!(
                    f,
                    "{path}: tensor {tensor} of shape {shape:?} is missing for {parameter}"
                )?;
                if let Some(similar) = similar {
                    write!(f, "; the file has {similar}")?;
                }
                match option(parameter) {
                    Some((option, off)) => write!(
                        f,
                        "; for a checkpoint without it, build the module with {option} {off}"
                    ),
                    None => Ok(()),
                }
            }
            Self::NotInModule {
                path,
                tensor,
                shape,
                parameter,
            } => {
                let path = path.display();
                write!(
                    f,
                    "{path}: tensor {tensor} of shape {shape:?} has no {parameter} in the module"
                )?;
                match option(parameter) {
                    Some((option, _)) => write!(f, "; build it with {option}"),
                    None => Ok(()),
                }
            }
            Self::NotInLayout {
                path,
                layout,
                parameter,
            } => write!(
                f,
                "{}: layout {layout} has no tensor for {parameter} of the module",
                path.display()
            ),
            Self::Shape {
                path,
                tensor,
                shape,
                expected,
                parameter,
            } => write!(
                f,
                "{}: tensor {tensor} has shape {shape:?}, but {parameter} needs {expected:?}",
                path.display()
            ),
            Self::DType {
                path,
                tensor,
                dtype,
            } => write!(
                f,
                "{}: tensor {tensor} holds {dtype}, not floating point",
                path.display()
            ),
            Self::Unknown {
                path,
                layout,
                tensors,
            } => write!(
                f,
                "{}: layout {layout} does not know {}",
                path.display(),
                tensors.join(", ")
            ),
        }
    }
}

impl std::error::Error for LoadError {}

/// The option of the configuration that gives the module a parameter, and its value without.
fn option(parameter: &str) -> Option<(&'static str, &'static str)> {
    Some(match parameter {
        "query.bias" => ("query_bias", "false"),
        "key.bias" => ("key_bias", "false"),
        "value.bias" => ("value_bias", "false"),
        "output.bias" => ("output_bias", "false"),
        "bias_key" | "bias_value" => ("add_bias_kv", "false"),
        "attention.sink" => ("sink", "false"),
        "qk_norm.query.gamma" | "qk_norm.key.gamma" => ("qk_norm", "none"),
        _ => return None,
    })
}
