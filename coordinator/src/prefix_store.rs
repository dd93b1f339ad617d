//! System prompts and tool lists by content hash: a resumed agent sends the bytes it always sent (spec 3.6).

use std::path::Path;

use query_engine::ports::{Prefix, ToolSpec};
use serde::{Deserialize, Serialize};
use sha2::Digest;

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
}

fn hash(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Keeps a prefix; gives the hash it is found by.
pub(crate) fn keep(directory: &Path, prefix: &Prefix) -> std::io::Result<String> {
    let stored = Stored {
        system: prefix.system.clone(),
        tools: prefix
            .tools
            .iter()
            .map(|tool| StoredTool {
                name: tool.name.clone(),
                description: tool.description.clone(),
                input_schema: tool.input_schema.clone(),
            })
            .collect(),
    };
    let bytes = serde_json::to_vec(&stored)?;
    let hash = hash(&bytes);
    let path = directory.join(format!("{hash}.json"));
    if !path.exists() {
        crate::home::replace_file(&path, &bytes)?;
    }
    Ok(hash)
}

/// The prefix of a hash; none when it is not there or was changed, which is a declared break.
pub(crate) fn load(directory: &Path, wanted: &str) -> Option<Prefix> {
    if wanted.len() != 64 || !wanted.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let bytes = std::fs::read(directory.join(format!("{wanted}.json"))).ok()?;
    if hash(&bytes) != wanted {
        return None;
    }
    let Stored { system, tools } = serde_json::from_slice(&bytes).ok()?;
    let tools = tools
        .into_iter()
        .map(|StoredTool { name, description, input_schema }| ToolSpec { name, description, input_schema })
        .collect();
    Some(Prefix { system, tools })
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
            }],
        };
        let hash = keep(directory.path(), &prefix).unwrap();
        let loaded = load(directory.path(), &hash).unwrap();
        assert_eq!(loaded, prefix);
        assert_eq!(loaded.tools[0].input_schema.to_string(), prefix.tools[0].input_schema.to_string());
        std::fs::write(directory.path().join(format!("{hash}.json")), b"{}").unwrap();
        assert!(load(directory.path(), &hash).is_none());
        assert!(load(directory.path(), "../../etc/passwd").is_none());
    }
}
