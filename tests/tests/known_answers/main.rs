//! Small inputs whose results were computed independently in f64.

mod behaviour;
mod small;
mod worked;
