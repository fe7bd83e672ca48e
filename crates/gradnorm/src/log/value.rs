//! What a record is, and the numbers in it.

use serde_json::{Map, Value};

use super::{SCHEMA_FIELD, SCHEMA_VERSION, STEP_FIELD};
use crate::float::parse_non_finite;
use crate::json;

/// A record as it stands in a log.
pub(super) struct Record {
    pub(super) step: u64,
    pub(super) fields: Map<String, Value>,
}

/// Why a line of a log is not a record.
pub(super) enum Refusal {
    NewerSchema(u64),
    Bad(String),
}

/// Checks that a text is an object that can become a line of a log.
pub(super) fn check_record(text: &str) -> Result<(), String> {
    let fields = parse_object(text)?;
    if fields.contains_key(SCHEMA_FIELD) {
        return Err("it has a field `schema`, which the writer adds".to_string());
    }
    step_of(&fields).map(|_| ())
}

/// Reads a line of a log. One without `schema` is taken for one of the first schema, so that logs
/// which other programs write need no more than a `step`.
pub(super) fn parse_line(line: &[u8]) -> Result<Record, Refusal> {
    let text = std::str::from_utf8(line)
        .map_err(|e| Refusal::Bad(format!("not UTF-8 from byte {}", e.valid_up_to() + 1)))?;
    let fields = parse_object(text).map_err(Refusal::Bad)?;
    match fields.get(SCHEMA_FIELD).map(Value::as_u64) {
        None | Some(Some(SCHEMA_VERSION)) => (),
        Some(Some(newer)) if newer > SCHEMA_VERSION => return Err(Refusal::NewerSchema(newer)),
        Some(_) => {
            let schema = &fields[SCHEMA_FIELD];
            return Err(Refusal::Bad(format!("{schema} is no schema version")));
        }
    }
    let step = step_of(&fields).map_err(Refusal::Bad)?;
    Ok(Record { step, fields })
}

pub(super) fn parse_object(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(other) => Err(format!("not a JSON object, but {}", kind(&other))),
        Err(e) => Err(json::syntax_error(&e)),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn step_of(fields: &Map<String, Value>) -> Result<u64, String> {
    let step = fields
        .get(STEP_FIELD)
        .ok_or_else(|| "it has no field `step`".to_string())?;
    step.as_u64()
        .ok_or_else(|| format!("its step is {step}, which is not a whole number from 0 up"))
}

/// The number that a value of a log stands for.
pub(super) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(name) => parse_non_finite(name),
        _ => None,
    }
}

/// Calls `each` with every number below `fields` and its dotted path.
pub(super) fn for_each_number(fields: &Map<String, Value>, each: &mut impl FnMut(&str, f64)) {
    let mut path = String::new();
    for (name, value) in fields {
        descend(value, name, &mut path, each);
    }
}

fn descend(value: &Value, name: &str, path: &mut String, each: &mut impl FnMut(&str, f64)) {
    let parent_len = path.len();
    if parent_len > 0 {
        path.push('.');
    }
    path.push_str(name);
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                descend(value, name, path, each);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                descend(value, &index.to_string(), path, each);
            }
        }
        leaf => {
            if let Some(number) = number(leaf) {
                each(path, number);
            }
        }
    }
    path.truncate(parent_len);
}

/// The value at a dotted path. A field's own name may have dots too, as parameters' paths do.
pub(crate) fn find<'a>(fields: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(value) = fields.get(path) {
        return Some(value);
    }
    path.match_indices('.').find_map(|(dot, _)| {
        let below = fields.get(&path[..dot])?;
        find_below(below, &path[dot + 1..])
    })
}

fn find_below<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => find(fields, path),
        Value::Array(items) => {
            let (index, rest) = match path.split_once('.') {
                Some((index, rest)) => (index, Some(rest)),
                None => (path, None),
            };
            let item = items.get(index.parse::<usize>().ok()?)?;
            match rest {
                Some(rest) => find_below(item, rest),
                None => Some(item),
            }
        }
        _ => None,
    }
}
