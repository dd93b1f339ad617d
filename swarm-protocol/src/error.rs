//! Errors as people read them.

use std::error::Error;

/// An error with its causes, on one line; a cause that its effect quotes already is not repeated.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Fault {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    #[test]
    fn causes_follow_and_are_said_once() {
        let chain = |texts: &[&'static str]| {
            let fault = texts.iter().rev().fold(None, |source, text| Some(Box::new(Fault { text, source })));
            error_chain(&*fault.unwrap())
        };
        assert_eq!(chain(&["no merge"]), "no merge");
        assert_eq!(chain(&["no merge", "no tree", "disk full"]), "no merge: no tree: disk full");
        assert_eq!(chain(&["no merge: disk full", "disk full"]), "no merge: disk full");
    }
}
