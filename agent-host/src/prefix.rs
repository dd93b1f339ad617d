//! System prompts and tool lists by content hash: a resumed agent sends the bytes it always sent (spec 3.6).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use query_engine::ports::{Offer, Prefix, ToolSpec};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::settings::replace_file;

#[derive(Serialize, Deserialize)]
struct Stored {
    system: Vec<String>,
    tools: Vec<StoredTool>,
}

#[derive(Serialize, Deserialize)]
struct StoredTool {
    name: String,
    description: String,
    input_schema: serde_json::Value,
    #[serde(default)]
    offer: Offer,
}

/// Keeps a prefix; gives the hash it is found by.
///
/// # Errors
/// When it cannot be written.
pub fn keep_prefix(directory: &Path, prefix: &Prefix) -> io::Result<String> {
    let Prefix { system, tools } = prefix.clone();
    let tools = tools
        .into_iter()
        .map(|ToolSpec { name, description, input_schema, offer }| StoredTool {
            name,
            description,
            input_schema,
            offer,
        })
        .collect();
    let bytes = serde_json::to_vec(&Stored { system, tools })?;
    let hash = hash(&bytes);
    let path = path(directory, &hash);
    if !path.exists() {
        replace_file(&path, 0o600, &bytes)?;
    }
    Ok(hash)
}

/// The prefix of a hash; none when it is not there or was changed, which is a declared break.
pub fn load_prefix(directory: &Path, wanted: &str) -> Option<Prefix> {
    if wanted.len() != 64 || !wanted.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let bytes = fs::read(path(directory, wanted)).ok()?;
    if hash(&bytes) != wanted {
        return None;
    }
    let Stored { system, tools } = serde_json::from_slice(&bytes).ok()?;
    let tools = tools
        .into_iter()
        .map(|StoredTool { name, description, input_schema, offer }| ToolSpec {
            name,
            description,
            input_schema,
            offer,
        })
        .collect();
    Some(Prefix { system, tools })
}

fn path(directory: &Path, hash: &str) -> PathBuf {
    directory.join(format!("{hash}.json"))
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r13_a_resume_sends_the_same_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let prefix = Prefix {
            system: vec!["a".to_owned(), "b".to_owned()],
            tools: vec![ToolSpec {
                name: "T".to_owned(),
                description: "d".to_owned(),
                input_schema: serde_json::json!({"type": "object", "b": 1, "a": 2}),
                offer: query_engine::ports::Offer::Always,
            }],
        };
        let hash = keep_prefix(directory.path(), &prefix).unwrap();
        let loaded = load_prefix(directory.path(), &hash).unwrap();
        assert_eq!(loaded, prefix);
        assert_eq!(loaded.tools[0].input_schema.to_string(), prefix.tools[0].input_schema.to_string());
        std::fs::write(directory.path().join(format!("{hash}.json")), b"{}").unwrap();
        assert!(load_prefix(directory.path(), &hash).is_none());
        assert!(load_prefix(directory.path(), "../../etc/passwd").is_none());
    }
}
