//! JSON text of any serde value, with NaN and infinity kept.
//!
//! `serde_json` writes them as `null`, which a reader cannot tell from a value that is not there.
//! The wrapper here hands every call on to `serde_json` and changes only what becomes of floats.

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use crate::float::non_finite_name;

/// One line.
pub(crate) fn to_line(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    serde_json::to_string(&Keep(value))
}

/// Indented, with a newline at the end: for files that people open.
pub(crate) fn to_pretty(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    let mut text = serde_json::to_string_pretty(&Keep(value))?;
    text.push('\n');
    Ok(text)
}

/// Why and where a text is not JSON; the line is left out for a text of one line.
pub(crate) fn syntax_error(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let message = text
        .strip_suffix(&format!(" at line {line} column {column}"))
        .unwrap_or(&text);
    match line {
        1 => format!("not JSON at column {column}: {message}"),
        _ => format!("not JSON at line {line}, column {column}: {message}"),
    }
}

/// A value that serializes through [`Floats`].
struct Keep<'a, T: ?Sized>(&'a T);

impl<T: Serialize + ?Sized> Serialize for Keep<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Floats(serializer))
    }
}

/// A serializer, or the part of one that writes a sequence, map or struct.
struct Floats<S>(S);

macro_rules! hand_on {
    ($($method:ident($type:ty))*) => {
        $(fn $method(self, value: $type) -> Result<S::Ok, S::Error> {
            self.0.$method(value)
        })*
    };
}

impl<S: Serializer> Serializer for Floats<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Floats<S::SerializeSeq>;
    type SerializeTuple = Floats<S::SerializeTuple>;
    type SerializeTupleStruct = Floats<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Floats<S::SerializeTupleVariant>;
    type SerializeMap = Floats<S::SerializeMap>;
    type SerializeStruct = Floats<S::SerializeStruct>;
    type SerializeStructVariant = Floats<S::SerializeStructVariant>;

    fn serialize_f32(self, value: f32) -> Result<S::Ok, S::Error> {
        match non_finite_name(value.into()) {
            Some(name) => self.0.serialize_str(name),
            // As f32, which has fewer digits than the same value as f64.
            None => self.0.serialize_f32(value),
        }
    }

    fn serialize_f64(self, value: f64) -> Result<S::Ok, S::Error> {
        match non_finite_name(value) {
            Some(name) => self.0.serialize_str(name),
            None => self.0.serialize_f64(value),
        }
    }

    hand_on! {
        serialize_bool(bool)
        serialize_i8(i8)
        serialize_i16(i16)
        serialize_i32(i32)
        serialize_i64(i64)
        serialize_i128(i128)
        serialize_u8(u8)
        serialize_u16(u16)
        serialize_u32(u32)
        serialize_u64(u64)
        serialize_u128(u128)
        serialize_char(char)
        serialize_str(&str)
        serialize_bytes(&[u8])
        serialize_unit_struct(&'static str)
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.0.serialize_none()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&Keep(value))
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.0.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_unit_variant(name, index, variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_struct(name, &Keep(value))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0
            .serialize_newtype_variant(name, index, variant, &Keep(value))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.0.serialize_seq(len).map(Floats)
    }

    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        self.0.serialize_tuple(len).map(Floats)
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.0.serialize_tuple_struct(name, len).map(Floats)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.0
            .serialize_tuple_variant(name, index, variant, len)
            .map(Floats)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        self.0.serialize_map(len).map(Floats)
    }

    fn serialize_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStruct, S::Error> {
        self.0.serialize_struct(name, len).map(Floats)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.0
            .serialize_struct_variant(name, index, variant, len)
            .map(Floats)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! hand_on_elements {
    ($($trait:ident: $method:ident($($key:ident)?);)*) => {
        $(impl<S: $trait> $trait for Floats<S> {
            type Ok = S::Ok;
            type Error = S::Error;

            fn $method<T: Serialize + ?Sized>(
                &mut self,
                $($key: &'static str,)?
                value: &T,
            ) -> Result<(), S::Error> {
                self.0.$method($($key,)? &Keep(value))
            }

            fn end(self) -> Result<S::Ok, S::Error> {
                self.0.end()
            }
        })*
    };
}

hand_on_elements! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeStruct: serialize_field(key);
    SerializeStructVariant: serialize_field(key);
}

impl<S: SerializeMap> SerializeMap for Floats<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), S::Error> {
        self.0.serialize_key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.0.serialize_value(&Keep(value))
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[derive(Serialize)]
    enum Shape {
        Unit,
        Newtype(f64),
        Tuple(f64, f32),
        Struct { x: f64 },
    }

    #[derive(Serialize)]
    struct Newtype(f32);

    #[derive(Serialize)]
    struct Pair(f64, f64);

    #[derive(Serialize)]
    struct Everything {
        some: Option<f64>,
        none: Option<f64>,
        unit: (),
        list: Vec<f64>,
        tuple: (f64, u8),
        map: BTreeMap<&'static str, f64>,
        newtype: Newtype,
        pair: Pair,
        shapes: Vec<Shape>,
        text: &'static str,
    }

    #[test]
    fn non_finite_floats_are_named_wherever_they_stand() {
        let everything = Everything {
            some: Some(f64::NAN),
            none: None,
            unit: (),
            list: vec![1.0, f64::INFINITY],
            tuple: (f64::NEG_INFINITY, 7),
            map: BTreeMap::from([("a", f64::NAN), ("b", 0.5)]),
            newtype: Newtype(f32::NEG_INFINITY),
            pair: Pair(f64::INFINITY, 2.0),
            shapes: vec![
                Shape::Unit,
                Shape::Newtype(f64::NAN),
                Shape::Tuple(f64::NAN, f32::INFINITY),
                Shape::Struct { x: f64::NAN },
            ],
            text: "as\nis",
        };
        let written: serde_json::Value =
            serde_json::from_str(&to_line(&everything).unwrap()).unwrap();
        assert_eq!(
            written,
            json!({
                "some": "NaN",
                "none": null,
                "unit": null,
                "list": [1.0, "inf"],
                "tuple": ["-inf", 7],
                "map": {"a": "NaN", "b": 0.5},
                "newtype": "-inf",
                "pair": ["inf", 2.0],
                "shapes": [
                    "Unit",
                    {"Newtype": "NaN"},
                    {"Tuple": ["NaN", "inf"]},
                    {"Struct": {"x": "NaN"}},
                ],
                "text": "as\nis",
            })
        );
    }

    #[test]
    fn finite_floats_have_as_many_digits_as_their_type_needs() {
        assert_eq!(to_line(&(0.1f32, 0.1f64, 1.0f64)).unwrap(), "[0.1,0.1,1.0]");
    }
}
