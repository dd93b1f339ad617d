//! The bodies of errors, in all the shapes that were seen: two vendors' objects, plain texts, FastAPI's
//! `detail`, a list of one, HTML of a proxy, nothing.

use serde_json::Value;

/// What an error's body says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// `error.type`.
    pub(super) kind: Option<String>,
    /// `error.code` when it is a word.
    pub(super) code: Option<String>,
    /// `error.code` when it is an HTTP status.
    pub(super) status: Option<u16>,
    /// `error.details.error_code`.
    pub(super) detail_code: Option<String>,
    /// What it says, on as many lines as it came.
    pub(super) message: String,
    /// The provider's id of the request.
    pub(super) request_id: Option<String>,
}

impl Report {
    /// Reads a whole body.
    pub(super) fn read(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let text = text.trim();
        match serde_json::from_str::<Value>(text) {
            Ok(value) => Self::of(&value),
            Err(_) if text.starts_with('<') => {
                Self { message: format!("an HTML page: {}", html_title(text)), ..Self::default() }
            }
            Err(_) => Self { message: text.to_owned(), ..Self::default() },
        }
    }

    /// Reads a JSON error: a whole body, the `error` object alone, or a list that holds one.
    pub(super) fn of(value: &Value) -> Self {
        let value = match value {
            Value::Array(items) => items.first().unwrap_or(value),
            other => other,
        };
        let mut report = match value.get("error") {
            Some(error @ Value::Object(_)) => Self::of_object(error),
            Some(Value::String(message)) => Self { message: message.clone(), ..Self::default() },
            _ if value.is_object() => Self::of_object(value),
            _ => Self { message: value.as_str().unwrap_or_default().to_owned(), ..Self::default() },
        };
        report.request_id = text(value, "request_id");
        report
    }

    fn of_object(error: &Value) -> Self {
        let code = error.get("code");
        let number = code.and_then(|code| code.as_u64().or_else(|| code.as_str()?.parse().ok()));
        let status = number.and_then(|number| u16::try_from(number).ok()).filter(|n| (400..600).contains(n));
        let message = text(error, "message").unwrap_or_else(|| match error.get("detail") {
            Some(Value::String(detail)) => detail.clone(),
            Some(detail) => detail.to_string(),
            None => String::new(),
        });
        Self {
            kind: text(error, "type").filter(|kind| kind != "error"),
            code: code.and_then(Value::as_str).filter(|_| number.is_none()).map(str::to_owned),
            status,
            detail_code: error.get("details").and_then(|details| text(details, "error_code")),
            message,
            request_id: None,
        }
    }

    /// The most telling word.
    pub(super) fn word(&self) -> Option<&str> {
        self.detail_code.as_deref().or(self.code.as_deref()).or(self.kind.as_deref())
    }
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The title of a page, or its first words without tags.
fn html_title(page: &str) -> String {
    let lower = page.to_ascii_lowercase();
    let title = lower.find("<title>").and_then(|start| {
        let start = start + "<title>".len();
        let end = lower[start..].find("</title>")? + start;
        Some(page[start..end].trim().to_owned())
    });
    title.filter(|title| !title.is_empty()).unwrap_or_else(|| {
        let mut words = String::new();
        let mut inside = false;
        for character in page.chars() {
            match character {
                '<' => inside = true,
                '>' => {
                    inside = false;
                    words.push(' ');
                }
                other if !inside => words.push(other),
                _ => {}
            }
        }
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    })
}
