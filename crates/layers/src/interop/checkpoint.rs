//! Reading a file of weights into a module.

use core::fmt;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use burn::store::burn_pack::Tensor as Stored;
use burn::store::{BurnpackStore, ModuleStore, PytorchStore, SafetensorsStore, bridge};
use burn::tensor::{DType, TensorData};

use super::error::LoadError;
use super::layout::{Layout, Piece, Widths};
use super::parameters::{parameters, set_parameters};
use crate::multi_head::MultiHeadAttention;

/// An open file of weights: PyTorch (`.pt`, `.pth`, `.bin`), safetensors (`.safetensors`) or
/// burnpack (`.bpk`).
///
/// Opening reads names and shapes; the values of a layer are read when it is loaded.
///
/// # Example
///
/// ```
/// use burn::module::Module;
/// use layers::{Checkpoint, Layout, MultiHeadAttentionConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Default::default();
/// let config = MultiHeadAttentionConfig::new(16, 4);
/// let path = std::env::temp_dir().join("layers-doc-checkpoint.bpk");
/// # let _ = std::fs::remove_file(&path);
/// let saved = config.init(&device);
/// saved.clone().save_file(&path)?;
///
/// let mut attention = config.init(&device);
/// let checkpoint = Checkpoint::open(&path)?;
/// checkpoint.load(&mut attention, Layout::Burn, "")?;
/// attention.query.weight.to_data().assert_eq(&saved.query.weight.to_data(), true);
/// # Ok(())
/// # }
/// ```
pub struct Checkpoint {
    path: PathBuf,
    tensors: BTreeMap<String, Stored>,
}

impl Checkpoint {
    /// Opens a file; its extension says what it is.
    ///
    /// The names of a PyTorch file with dictionaries in dictionaries are joined by dots:
    /// `model.layer.in_proj_weight`.
    ///
    /// # Errors
    ///
    /// [`LoadError::Unreadable`], with the path and the reason.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let extension = path.extension().and_then(|extension| extension.to_str());
        let tensors = match extension {
            // An index in a name means that place in the file and no other: a gap stays a gap.
            Some("pt" | "pth" | "bin") => {
                read(&mut PytorchStore::from_file(path).map_indices_contiguous(false))
            }
            Some("safetensors") => read(&mut SafetensorsStore::from_file(path)),
            Some("bpk") => read(&mut BurnpackStore::from_file(path)),
            _ => Err(
                "not a checkpoint by its extension: known are pt, pth, bin, safetensors, bpk"
                    .to_string(),
            ),
        };
        let path = path.to_path_buf();
        match tensors {
            Ok(tensors) => Ok(Self { path, tensors }),
            Err(reason) => Err(LoadError::Unreadable { path, reason }),
        }
    }

    /// The names of the tensors, sorted.
    ///
    /// ```
    /// # fn main() -> Result<(), layers::LoadError> {
    /// let checkpoint = layers::Checkpoint::open("tests/data/interop/torch_packed.pt")?;
    /// assert!(checkpoint.names().any(|name| name == "model.layer.attention.in_proj_weight"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Gives a module the weights of one layer.
    ///
    /// The prefix is the path of the attention layer in the checkpoint, such as
    /// `model.layers.0.self_attn`, with or without the dot behind; nothing for a file of one layer.
    /// The table on [the page of this module](crate::interop) says which names a layout has below
    /// it.
    ///
    /// The module keeps its element type, and the values are converted to it. It keeps its devices,
    /// the identities of its parameters and whether they are trained. Options without weights
    /// (causal, rotary, scale, `add_zero_attn`) are not in a checkpoint: they are the
    /// configuration's business.
    ///
    /// # Errors
    ///
    /// If a tensor is missing, has no parameter in the module, is not known to the layout, has
    /// another shape than the module needs, or does not hold floating-point numbers; the module is
    /// then as it was.
    ///
    /// # Panics
    ///
    /// If the module is quantised; load before that.
    ///
    /// # Example
    ///
    /// ```
    /// use layers::{Checkpoint, Layout, MultiHeadAttentionConfig};
    ///
    /// # fn main() -> Result<(), layers::LoadError> {
    /// let config = MultiHeadAttentionConfig::new(6, 2).with_causal(true);
    /// let mut attention = config.init(&Default::default());
    /// let checkpoint = Checkpoint::open("tests/data/interop/gpt2.safetensors")?;
    /// checkpoint.load(&mut attention, Layout::Gpt2, "transformer.h.0.attn")?;
    ///
    /// let mut narrow = MultiHeadAttentionConfig::new(4, 2).init(&Default::default());
    /// let error = checkpoint.load(&mut narrow, Layout::Gpt2, "transformer.h.0.attn").unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "tests/data/interop/gpt2.safetensors: tensor transformer.h.0.attn.c_attn.weight has \
    ///      shape [6, 18], but query.weight needs [4, 12]"
    /// );
    /// # Ok(())
    /// # }
    /// ```
    pub fn load(
        &self,
        module: &mut MultiHeadAttention,
        layout: Layout,
        prefix: &str,
    ) -> Result<(), LoadError> {
        let prefix = match prefix {
            "" => String::new(),
            prefix => format!("{}.", prefix.trim_end_matches('.')),
        };
        let parameters = parameters(module);
        let plan = layout.plan(
            Widths {
                query: module.n_heads * module.d_head,
                key: module.n_kv_heads * module.d_head,
                value: module.n_kv_heads * module.d_value_head,
            },
            |name| self.tensors.contains_key(&format!("{prefix}{name}")),
        );

        let mut values = HashMap::new();
        for piece in &plan.pieces {
            let name = format!("{prefix}{}", piece.tensor);
            let parameter = parameters.get(piece.parameter);
            match (self.tensors.get(&name), parameter) {
                (None, None) => {}
                (None, Some((shape, _))) => return Err(self.missing(name, piece, shape)),
                (Some(tensor), None) => {
                    return Err(LoadError::NotInModule {
                        path: self.path.clone(),
                        tensor: name,
                        shape: tensor.shape.to_vec(),
                        parameter: piece.parameter.into(),
                    });
                }
                (Some(tensor), Some((shape, dtype))) => {
                    let value = self.value(tensor, piece, shape, *dtype)?;
                    values.insert(piece.parameter.to_string(), value);
                }
            }
        }
        if let Some(parameter) = parameters.keys().find(|name| !values.contains_key(*name)) {
            return Err(LoadError::NotInLayout {
                path: self.path.clone(),
                layout,
                parameter: parameter.clone(),
            });
        }
        let known = |name: &str| {
            let ignored = |ignored: &&str| match ignored.ends_with('.') {
                true => name.starts_with(*ignored),
                false => name == *ignored,
            };
            plan.pieces.iter().any(|piece| piece.tensor == name) || plan.ignored.iter().any(ignored)
        };
        let below = self.names().filter_map(|name| name.strip_prefix(&prefix));
        let unknown: Vec<_> = below
            .filter(|name| !known(name))
            .map(|name| format!("{prefix}{name}"))
            .collect();
        if !unknown.is_empty() {
            return Err(LoadError::Unknown {
                path: self.path.clone(),
                layout,
                tensors: unknown,
            });
        }
        set_parameters(module, values);
        Ok(())
    }

    fn missing(&self, tensor: String, piece: &Piece, shape: &[usize]) -> LoadError {
        let end = format!(".{}", piece.tensor);
        let similar = |name: &&str| *name == piece.tensor || name.ends_with(&end);
        LoadError::Missing {
            path: self.path.clone(),
            shape: piece.file_shape(shape),
            parameter: piece.parameter.into(),
            similar: self.names().find(similar).map(String::from),
            tensor,
        }
    }

    /// What a parameter of this shape and element type takes from a tensor.
    fn value(
        &self,
        tensor: &Stored,
        piece: &Piece,
        shape: &[usize],
        dtype: DType,
    ) -> Result<TensorData, LoadError> {
        let expected = piece.file_shape(shape);
        if tensor.shape.to_vec() != expected {
            return Err(LoadError::Shape {
                path: self.path.clone(),
                tensor: tensor.name.clone(),
                shape: tensor.shape.to_vec(),
                expected,
                parameter: piece.parameter.into(),
            });
        }
        if !matches!(
            tensor.dtype,
            DType::F64 | DType::F32 | DType::F16 | DType::BF16
        ) {
            return Err(LoadError::DType {
                path: self.path.clone(),
                tensor: tensor.name.clone(),
                dtype: format!("{:?}", tensor.dtype),
            });
        }
        let data = bridge::to_data(tensor).map_err(|error| LoadError::Unreadable {
            path: self.path.clone(),
            reason: format!("tensor {}: {error}", tensor.name),
        })?;
        let bytes = piece.take(data.as_bytes(), tensor.dtype.size(), shape);
        let data = TensorData::from_bytes_vec(bytes, shape.to_vec(), tensor.dtype);
        Ok(data.convert_dtype(dtype))
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("path", &self.path)
            .field("tensors", &self.tensors.len())
            .finish()
    }
}

fn read<S: ModuleStore>(store: &mut S) -> Result<BTreeMap<String, Stored>, String> {
    match store.get_all_tensors() {
        Ok(tensors) => Ok(tensors.clone()),
        Err(error) => Err(error.to_string()),
    }
}
