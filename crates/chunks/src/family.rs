//! Families of files. A new version is compared with earlier versions of its family.

use regex::Regex;

use crate::error::{Error, Result};

/// Default pattern of the parts of a path that differ between versions: numbers.
pub const DEFAULT_RULE: &str = "[0-9]+";
/// Maximum size of the compiled rule in bytes.
const MOST_RULE_BYTES: usize = 1 << 20;

/// Rule that groups paths into families.
#[derive(Debug)]
pub struct Rule(Regex);

impl Rule {
    /// Create a rule. Paths belong to the same family if they differ only in the parts that `expression` matches.
    pub fn new(expression: &str) -> Result<Self> {
        regex::RegexBuilder::new(expression)
            .size_limit(MOST_RULE_BYTES)
            .build()
            .map(Rule)
            .map_err(|error| Error::Bad(format!("family: found {expression:?}: {error}")))
    }

    /// Family of a path.
    pub fn family(&self, path: &str) -> String {
        self.0.replace_all(path, "#").into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_paths_form_one_family() {
        let rule = Rule::new(DEFAULT_RULE).unwrap();
        assert_eq!(
            rule.family("run1/ckpt.0001"),
            rule.family("run22/ckpt.0002")
        );
        assert_ne!(rule.family("a.1"), rule.family("b.1"));
        assert!(Rule::new("(").is_err());
    }
}
