//! Patterns over dotted paths, such as a parameter's or a logged quantity's.

/// A glob over the segments of a dotted path.
///
/// `*` stands for any characters within one segment, a segment `**` for any number of whole
/// segments, none included. Everything else stands for itself.
///
/// | pattern | matches | does not match |
/// |---|---|---|
/// | `query.weight` | `query.weight` | `attention.query.weight` |
/// | `*.weight` | `query.weight` | `attention.query.weight` |
/// | `**.query.*` | `query.weight`, `layers.0.query.bias` | `query.norm.weight` |
/// | `layers.*.**` | `layers.0.query.weight` | `embedding.weight` |
///
/// # Example
///
/// ```
/// use gradnorm::PathPattern;
///
/// let queries = PathPattern::new("**.query.*");
/// assert!(queries.matches("layers.0.query.weight"));
/// assert!(!queries.matches("layers.0.key.weight"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPattern {
    pattern: String,
}

impl PathPattern {
    /// Takes a pattern; every text is one.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
        }
    }

    /// Whether the whole path matches.
    pub fn matches(&self, path: &str) -> bool {
        let pattern: Vec<&str> = self.pattern.split('.').collect();
        let path: Vec<&str> = path.split('.').collect();
        glob(&pattern, &path, |p| *p == "**", |p, s| segment(p, s))
    }

    /// The path itself, if the pattern matches one path only.
    pub(crate) fn literal(&self) -> Option<&str> {
        (!self.pattern.contains('*')).then_some(&self.pattern)
    }
}

impl<T: Into<String>> From<T> for PathPattern {
    fn from(pattern: T) -> Self {
        Self::new(pattern)
    }
}

fn segment(pattern: &str, text: &str) -> bool {
    glob(pattern.as_bytes(), text.as_bytes(), |p| *p == b'*', u8::eq)
}

/// Whether `text` matches `pattern`, in which the items that are `any` stand for any run of items.
///
/// Time is at most the product of the lengths: only the last `any` need ever be extended, because
/// what an earlier one could take, a later one can take as well.
fn glob<P, T>(
    pattern: &[P],
    text: &[T],
    any: impl Fn(&P) -> bool,
    same: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut last_any: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && any(&pattern[p]) {
            last_any = Some((p, t));
            p += 1;
        } else if p < pattern.len() && same(&pattern[p], &text[t]) {
            p += 1;
            t += 1;
        } else if let Some((any_at, taken)) = last_any {
            last_any = Some((any_at, taken + 1));
            p = any_at + 1;
            t = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_segments() {
        let cases = [
            ("query.weight", "query.weight", true),
            ("query.weight", "attention.query.weight", false),
            ("query", "query.weight", false),
            ("*.weight", "query.weight", true),
            ("*.weight", "attention.query.weight", false),
            ("**.weight", "weight", true),
            ("**.query.*", "query.weight", true),
            ("**.query.*", "layers.0.query.bias", true),
            ("**.query.*", "query.norm.weight", false),
            ("**.query.*", "my_query.weight", false),
            ("**.*query.*", "my_query.weight", true),
            ("**.query.**", "a.query.b.query", true),
            ("layers.*.**", "layers.0.query.weight", true),
            ("layers.*.**", "layers.0", true),
            ("layers.*.**", "layers", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("**", "anything.at.all", true),
            ("*", "", true),
        ];
        for (pattern, path, expected) in cases {
            let actual = PathPattern::new(pattern).matches(path);
            assert_eq!(actual, expected, "{pattern} on {path}");
        }
    }

    #[test]
    fn a_pattern_that_backtracks_much_ends_soon() {
        let pattern = PathPattern::new("**.a.".repeat(30) + "b");
        assert!(!pattern.matches(&"a.".repeat(2000)));
    }
}
