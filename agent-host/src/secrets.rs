//! Keys in texts: found by their form, or because they are known, and replaced by a word that says what was there.
//! Pure. A form is masked only where nothing else looks like it: hashes, ids and pictures stay as they are.

use regex::{Captures, Regex, RegexSet};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    borrow::Cow,
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

mod live;

pub use live::{LiveMasker, tail};

/// How what was masked begins; the form's name follows, and a bracket.
pub const MARK: &str = "[masked: ";

/// Stands for a key where only letters are taken, such as in an id.
const PLAIN_MARK: &str = "masked-key";

/// A known value shorter than this is no key, and would hit ordinary words.
const SHORTEST_KNOWN: usize = 8;

/// What may stand before a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// Anything: the form says enough by itself.
    Anything,
    /// No part of a longer word. Its own dash or underscore is not in what else is packed as letters and slashes, so
    /// the form may stand in a path or a URL.
    NoWord,
    /// Neither that nor a part of a path or of base64, which could look like it by chance.
    NoEncoding,
}

impl Before {
    /// One character that ends what went before, or the beginning; or what stands for a character: the escapes of JSON
    /// and of URLs end in letters.
    fn form(self) -> &'static str {
        match self {
            Self::Anything => "(?<before>)",
            Self::NoWord => r"(?<before>^|[^A-Za-z0-9_-]|\\(?:[nrtbf]|u[0-9A-Fa-f]{4})|%[0-9A-Fa-f]{2})",
            Self::NoEncoding => {
                r"(?<before>^|[^A-Za-z0-9_+/.-]|//|\\(?:[nrtbf]|u[0-9A-Fa-f]{4})|%[0-9A-Fa-f]{2})"
            }
        }
    }
}

/// Name, what may stand before, and form.
const FORMS: [(&str, Before, &str); 19] = [
    ("anthropic key", Before::NoWord, r"sk-ant-[A-Za-z0-9_-]{16,}"),
    ("openrouter key", Before::NoWord, r"sk-or-v1-[0-9a-f]{32,}"),
    ("openai key", Before::NoWord, r"sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,}"),
    // Without a dash: `sk-` begins the names of styles, too.
    ("key", Before::NoEncoding, r"sk-[A-Za-z0-9]{32,}"),
    ("stripe key", Before::NoWord, r"[sr]k_live_[A-Za-z0-9]{16,}"),
    ("github token", Before::NoWord, r"gh[pousr]_[A-Za-z0-9]{36,}"),
    ("github token", Before::NoWord, r"github_pat_[A-Za-z0-9_]{22,}"),
    ("gitlab token", Before::NoWord, r"glpat-[A-Za-z0-9_-]{20,}"),
    ("npm token", Before::NoWord, r"npm_[A-Za-z0-9]{36}\b"),
    ("huggingface token", Before::NoWord, r"hf_[A-Za-z0-9]{30,}"),
    ("aws key id", Before::NoEncoding, r"(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("google key", Before::NoEncoding, r"AIza[0-9A-Za-z_-]{35}\b"),
    ("slack token", Before::NoWord, r"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("jwt", Before::NoEncoding, r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    (
        "private key",
        Before::Anything,
        r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z0-9 ]*-----|\z)",
    ),
    // Whose beginning is elsewhere: the lines before its end, with or without numbers.
    (
        "private key",
        Before::Anything,
        r"(?m:(?:^[ \t]*(?:\d+\t)?[A-Za-z0-9+/=]{1,76}\r?\n)+[ \t]*(?:\d+\t)?-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----)",
    ),
    // The value alone; the words before it say what is missing.
    (
        "authorization",
        Before::Anything,
        r#"(?i:authorization\\?["']?\s*[:=]\s*\\?["']?(?:bearer|basic|token)\s+)(?<value>[A-Za-z0-9._~+/=-]{16,})"#,
    ),
    (
        "api key",
        Before::Anything,
        r#"(?i:x-(?:goog-)?api-key\\?["']?\s*[:=]\s*\\?["']?)(?<value>[A-Za-z0-9._~+/=-]{16,})"#,
    ),
    (
        "aws secret key",
        Before::Anything,
        r#"(?i:aws_?secret_?access_?key\\?["']?\s*[:=]\s*\\?["']?)(?<value>[A-Za-z0-9/+]{40})\b"#,
    ),
];

static COMPILED: LazyLock<Vec<(&str, Regex)>> = LazyLock::new(|| {
    FORMS
        .iter()
        .map(|(name, before, form)| {
            let form = format!("{}(?:{form})", before.form());
            (*name, Regex::new(&form).expect("a test compiles each form"))
        })
        .collect()
});

/// The same without what stands before: whether a text is worth a closer look.
static ANY: LazyLock<RegexSet> =
    LazyLock::new(|| RegexSet::new(FORMS.iter().map(|(.., form)| *form)).expect("a test compiles each form"));

/// Masks the forms, and the values it was told. Clones know the same values.
#[derive(Clone, Default)]
pub struct Masker(Arc<RwLock<Vec<String>>>);

impl std::fmt::Debug for Masker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Masker(..)")
    }
}

impl Masker {
    /// Tells it a key of ours, whatever its form.
    pub fn know(&self, value: &str) {
        let value = value.trim();
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if value.len() >= SHORTEST_KNOWN && !known.iter().any(|other| other == value) {
            known.push(value.to_owned());
            // One may be a part of another.
            known.sort_by_key(|value| std::cmp::Reverse(value.len()));
        }
    }

    /// The text without keys.
    #[must_use]
    pub fn mask<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.mask_with(text, &marked)
    }

    fn mask_with<'a>(&self, text: &'a str, mark: &dyn Fn(&str) -> String) -> Cow<'a, str> {
        let mut masked = Cow::Borrowed(text);
        for value in self.0.read().unwrap_or_else(PoisonError::into_inner).iter() {
            if masked.contains(value.as_str()) {
                masked = Cow::Owned(masked.replace(value.as_str(), &mark("key")));
            }
        }
        for form in ANY.matches(&masked) {
            let (name, regex) = &COMPILED[form];
            let replaced = regex.replace_all(&masked, |found: &Captures<'_>| {
                let whole = &found[0];
                // All of it, or all but its value.
                let kept = match found.name("value") {
                    Some(value) => &whole[..value.start() - found.get(0).map_or(0, |whole| whole.start())],
                    None => &found["before"],
                };
                format!("{kept}{}", mark(name))
            });
            if let Cow::Owned(replaced) = replaced {
                masked = Cow::Owned(replaced);
            }
        }
        masked
    }

    /// Whether a serialized text could hold a key. It may say so of one that holds none.
    #[must_use]
    pub fn suspects(&self, text: &str) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        // A text in JSON escapes what a key seldom holds.
        let is_known = |value: &String| text.contains(value.as_str()) || value.contains(['"', '\\']);
        known.iter().any(is_known) || ANY.is_match(text) || text.contains("PRIVATE KEY")
    }

    /// The strings of a JSON value without keys; names stay.
    pub fn mask_value(&self, value: &mut Value) {
        self.mask_value_with(value, &marked);
    }

    fn mask_value_with(&self, value: &mut Value, mark: &dyn Fn(&str) -> String) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(masked) = self.mask_with(text, mark) {
                    *text = masked;
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.mask_value_with(value, mark)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.mask_value_with(value, mark)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// A text of JSON without keys; what is no JSON is masked as it stands.
    #[must_use]
    pub fn mask_json<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.suspects(text) {
            return Cow::Borrowed(text);
        }
        match serde_json::from_str::<Value>(text) {
            Ok(mut value) => {
                self.mask_value(&mut value);
                Cow::Owned(value.to_string())
            }
            Err(_) => self.mask(text),
        }
    }

    /// A message without keys, whatever its type. Nothing for one that cannot be without them, since its type takes
    /// neither of the marks where they stand; that would be a mistake of the type.
    #[must_use]
    pub fn masked<T: Serialize + DeserializeOwned>(&self, message: T) -> Option<T> {
        let text = match serde_json::to_string(&message) {
            Ok(text) if self.suspects(&text) => text,
            Ok(_) => return Some(message),
            Err(error) => {
                tracing::error!(%error, "a message could not be looked through for keys");
                return None;
            }
        };
        let value: Value = serde_json::from_str(&text).ok()?;
        // Ids take no brackets.
        let marks: [&dyn Fn(&str) -> String; 2] = [&marked, &|_| PLAIN_MARK.to_owned()];
        let masked = marks.into_iter().find_map(|mark| {
            let mut value = value.clone();
            self.mask_value_with(&mut value, mark);
            serde_json::from_value(value).ok()
        });
        if masked.is_none() {
            tracing::error!("a message holds a key in a place that cannot be masked; it was not sent");
        }
        masked
    }
}

/// What stands where a key of this form was.
fn marked(name: &str) -> String {
    format!("{MARK}{name}]")
}

/// A writer of log lines without keys. Each write is a line, as `tracing` makes them.
#[derive(Debug)]
pub struct MaskedWriter<W>(pub W);

impl<W: std::io::Write> std::io::Write for MaskedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.0.write_all(Masker::default().mask(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    // Put together here, so that no scanner of repositories takes them for real.
    pub(crate) fn letters(count: usize) -> String {
        "aB3dE5gH7jK9mN1pQ".chars().cycle().take(count).collect()
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(Masker::default().mask(text), expected);
        // What is masked stays so.
        assert_eq!(Masker::default().mask(expected), expected);
    }

    #[test]
    fn keys_are_masked_by_their_form() {
        let upper = "ABCDEFGH23456789";
        let jwt = format!("eyJ{}.eyJ{}.{}", letters(20), letters(30), letters(43));
        for (key, name) in [
            (format!("sk-ant-api03-{}-_AA", letters(80)), "anthropic key"),
            (format!("sk-or-v1-{}", "0123456789abcdef".repeat(4)), "openrouter key"),
            (format!("sk-proj-{}", letters(60)), "openai key"),
            (format!("sk-{}", letters(48)), "key"),
            (format!("sk_live_{}", letters(24)), "stripe key"),
            (format!("ghp_{}", letters(36)), "github token"),
            (format!("github_pat_{}_{}", letters(22), letters(59)), "github token"),
            (format!("glpat-{}", letters(20)), "gitlab token"),
            (format!("npm_{}", letters(36)), "npm token"),
            (format!("hf_{}", letters(34)), "huggingface token"),
            (format!("AKIA{upper}"), "aws key id"),
            (format!("AIza{}", letters(35)), "google key"),
            (format!("xoxb-{}-{}", "1234567890", letters(24)), "slack token"),
            (jwt, "jwt"),
        ] {
            let masked = format!("{MARK}{name}]");
            check(&key, &masked);
            check(&format!("KEY={key}\nnext"), &format!("KEY={masked}\nnext"));
            check(&format!("a \"{key}\", '{key}'"), &format!("a \"{masked}\", '{masked}'"));
            check(&format!("{key} {key}"), &format!("{masked} {masked}"));
        }
        let secret = letters(40);
        check(
            &format!("aws_secret_access_key = {secret}"),
            &format!("aws_secret_access_key = {MARK}aws secret key]"),
        );
        for before in [
            "Authorization: Bearer ",
            "authorization: basic ",
            "-H 'Authorization: token ",
            "{\"Authorization\": \"Bearer ",
        ] {
            check(&format!("{before}{secret}"), &format!("{before}{MARK}authorization]"));
        }
        let lines = format!("{}\n{}\n", letters(64), letters(64));
        let pem =
            |kind: &str| format!("-----BEGIN {kind}PRIVATE KEY-----\n{lines}-----END {kind}PRIVATE KEY-----");
        for kind in ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "] {
            check(&format!("x\n{}\ny", pem(kind)), &format!("x\n{MARK}private key]\ny"));
        }
        // Cut off in the middle: what is there of it goes.
        check(&pem("")[..80], &format!("{MARK}private key]"));
    }

    #[test]
    fn what_only_looks_like_a_key_stays() {
        let picture = format!(
            "iVBORw0KGgo{}sk-ant-{}/AKIAABCDEFGH23456789+{}=",
            letters(300),
            letters(10),
            letters(40)
        );
        for text in [
            "9fceb02d0ae598e95dc970b74767f19372d61af8 commit".to_owned(),
            "6f1ed002ab5595859014ebf0951522d9f3a1c8e2b4d6f8a0c2e4f6a8b0d2f4a6".to_owned(),
            "550e8400-e29b-41d4-a716-446655440000".to_owned(),
            format!("sha512-{}==", letters(86)),
            picture.replace("sk-ant-", ""),
            format!("data:image/png;base64,{}", picture.replace("sk-ant-", "sk")),
            "class=\"sk-folding-cube-animation-container-wide\"".to_owned(),
            "risk-assessment-of-the-whole-project-plan-2024".to_owned(),
            format!("task-{}", letters(40)),
            "Authorization: Bearer $TOKEN".to_owned(),
            "Authorization: Bearer <your-token>".to_owned(),
            "authorization: Bearer ${{ secrets.GITHUB_TOKEN }}".to_owned(),
            "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----".to_owned(),
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----".to_owned(),
            format!("ssh-ed25519 AAAAC3{} me@here", letters(60)),
            "sk-ant-...".to_owned(),
            "export ANTHROPIC_API_KEY=sk-ant-xxx".to_owned(),
            "ghp_short npm_install AKIA AIza xoxo-love".to_owned(),
            "eyJhbGciOiJIUzI1NiJ9".to_owned(),
            "postgres://user:password@localhost/db".to_owned(),
        ] {
            check(&text, &text);
        }
    }

    #[test]
    fn known_values_are_masked_whatever_their_form() {
        let masker = Masker::default();
        masker.know("short");
        masker.know("local-gateway-secret");
        masker.know("local-gateway-secret-longer");
        let clone = masker.clone();
        assert_eq!(clone.mask("a short local-gateway-secret."), format!("a short {MARK}key]."));
        assert_eq!(clone.mask("local-gateway-secret-longer"), format!("{MARK}key]"));
    }

    #[test]
    fn strings_of_json_are_masked_and_nothing_else_changes() {
        let masker = Masker::default();
        let key = format!("ghp_{}", letters(36));
        let value =
            json!({"z": 1, "a": [format!("first\n{key}"), 1.5, null], "big": u64::MAX, "deep": {"x": key}});
        let masked: Value = serde_json::from_str(&masker.mask_json(&value.to_string())).unwrap();
        let word = format!("{MARK}github token]");
        assert_eq!(
            masked,
            json!({"z": 1, "a": [format!("first\n{word}"), 1.5, null], "big": u64::MAX, "deep": {"x": word}})
        );
        let plain = json!({"text": "nothing"}).to_string();
        assert!(matches!(masker.mask_json(&plain), Cow::Borrowed(_)));
        assert_eq!(masker.masked(vec![format!("x {key}")]), Some(vec![format!("x {word}")]));
    }

    #[test]
    fn a_message_whose_type_takes_no_mark_is_not_passed_on_as_it_is() {
        /// Takes words of letters and dashes, as ids do; or but one word.
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        struct Word<const IS_STRICT: bool>(String);
        impl<const IS_STRICT: bool> TryFrom<String> for Word<IS_STRICT> {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                let is_key = text.starts_with("ghp_");
                let taken = is_key || !IS_STRICT && !text.contains(['[', ' ']);
                if taken { Ok(Self(text)) } else { Err("no word".to_owned()) }
            }
        }
        impl<const IS_STRICT: bool> From<Word<IS_STRICT>> for String {
            fn from(word: Word<IS_STRICT>) -> Self {
                word.0
            }
        }
        impl<const IS_STRICT: bool> Clone for Word<IS_STRICT> {
            fn clone(&self) -> Self {
                Self(self.0.clone())
            }
        }
        let key = format!("ghp_{}", letters(36));
        let masker = Masker::default();
        assert_eq!(masker.masked(Word::<false>(key.clone())), Some(Word("masked-key".to_owned())));
        assert_eq!(masker.masked(Word::<true>(key)), None);
    }

    #[test]
    fn keys_are_found_wherever_they_begin() {
        let token = format!("ghp_{}", letters(36));
        let word = format!("{MARK}github token]");
        for (before, behind) in [
            ("https://", "@github.com/x.git"),
            ("https://x-access-token:", "@github.com"),
            ("https://host/", "/x"),
            ("{\"text\": \"first\\n", "\"}"),
            ("\\r\\n", ""),
            ("\\u003d", ""),
            ("?token%3D", "&x=1"),
            ("../", ""),
        ] {
            check(&format!("{before}{token}{behind}"), &format!("{before}{word}{behind}"));
        }
        let aws = "AKIAABCDEFGH23456789";
        check(&format!("s3://{aws}:x"), &format!("s3://{MARK}aws key id]:x"));
        let value = letters(40);
        for before in [
            "Proxy-Authorization: Basic ",
            "{\\\"Authorization\\\": \\\"Bearer ",
            "X-Forwarded-Authorization = token ",
        ] {
            check(&format!("{before}{value}"), &format!("{before}{MARK}authorization]"));
        }
        check(&format!("-H 'x-api-key: {value}'"), &format!("-H 'x-api-key: {MARK}api key]'"));
        check(
            &format!("TF_VAR_aws_secret_access_key={value}"),
            &format!("TF_VAR_aws_secret_access_key={MARK}aws secret key]"),
        );
        // A part of a file with a key, from the middle, with the numbers of Read.
        let rest = format!("  12\t{}\n  13\tab==\n  14\t-----END RSA PRIVATE KEY-----\n", letters(64));
        check(&format!("some words.\n{rest}"), &format!("some words.\n{MARK}private key]\n"));
    }

    #[test]
    fn lines_of_a_log_are_masked() {
        use std::io::Write as _;
        let mut log = MaskedWriter(Vec::new());
        log.write_all(format!("key sk-{}\n", letters(40)).as_bytes()).unwrap();
        assert_eq!(String::from_utf8(log.0).unwrap(), format!("key {MARK}key]\n"));
    }
}
