//! System prompt and tools by content hash: a resumed agent sends the bytes it always sent (spec 3.6).

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use query_engine::ports::{Prefix, ToolSpec};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// In an agent's own directory: which prefix it began with.
const POINTER: &str = "prefix";

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

/// The prefix this agent began with; when it begins now, `fresh`, which is kept.
pub(crate) fn kept(prompts: &Path, own: &Path, fresh: Prefix) -> anyhow::Result<Prefix> {
    let pointer = own.join(POINTER);
    if let Ok(hash) = fs::read_to_string(&pointer) {
        match load(prompts, hash.trim()) {
            Some(prefix) => return Ok(prefix),
            None => tracing::warn!("the system prompt of the earlier runs is gone; the cache starts anew"),
        }
    }
    let Prefix { system, tools } = fresh.clone();
    let tools = tools
        .into_iter()
        .map(|ToolSpec { name, description, input_schema }| StoredTool { name, description, input_schema })
        .collect();
    let bytes = serde_json::to_vec(&Stored { system, tools })?;
    let hash = hash(&bytes);
    let path = path(prompts, &hash);
    if !path.exists() {
        replace(&path, &bytes)?;
    }
    replace(&pointer, hash.as_bytes())?;
    Ok(fresh)
}

fn load(prompts: &Path, wanted: &str) -> Option<Prefix> {
    if wanted.len() != 64 || !wanted.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let bytes = fs::read(path(prompts, wanted)).ok()?;
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

fn path(prompts: &Path, hash: &str) -> PathBuf {
    prompts.join(format!("{hash}.json"))
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let directory = path.parent().context("a file without a directory")?;
    let failed = || format!("failed to write {}", path.display());
    let mut file = tempfile::NamedTempFile::new_in(directory).with_context(failed)?;
    file.write_all(bytes).with_context(failed)?;
    file.as_file().sync_data().with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_agent_keeps_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let prefix = |text: &str| Prefix {
            system: vec![text.to_owned()],
            tools: vec![ToolSpec {
                name: "T".to_owned(),
                description: "d".to_owned(),
                input_schema: serde_json::json!({"type": "object", "properties": {"b": {}, "a": {}}}),
            }],
        };
        let first = kept(dir.path(), dir.path(), prefix("one")).unwrap();
        assert_eq!(first, prefix("one"));
        assert_eq!(kept(dir.path(), dir.path(), prefix("two")).unwrap(), prefix("one"));
        let other = dir.path().join("other");
        fs::create_dir(&other).unwrap();
        assert_eq!(kept(dir.path(), &other, prefix("two")).unwrap(), prefix("two"));
        for entry in fs::read_dir(dir.path()).unwrap().flatten() {
            if entry.path().extension().is_some_and(|end| end == "json") {
                fs::write(entry.path(), "{}").unwrap();
            }
        }
        assert_eq!(kept(dir.path(), dir.path(), prefix("three")).unwrap(), prefix("three"));
    }
}
