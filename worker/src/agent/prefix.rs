//! Which system prompt and tools this agent began with: a resumed one sends the bytes it always sent (spec 3.6).

use std::{fs, path::Path};

use agent_host::{keep_prefix, load_prefix, replace_file};
use anyhow::Context as _;
use query_engine::ports::Prefix;

/// In an agent's own directory: which prefix it began with.
const POINTER: &str = "prefix";

/// The prefix this agent began with; when it begins now, `fresh`, which is kept.
pub(crate) fn kept(prompts: &Path, own: &Path, fresh: Prefix) -> anyhow::Result<Prefix> {
    let pointer = own.join(POINTER);
    if let Ok(hash) = fs::read_to_string(&pointer) {
        match load_prefix(prompts, hash.trim()) {
            Some(prefix) => return Ok(prefix),
            None => tracing::warn!("the system prompt of the earlier runs is gone; the cache starts anew"),
        }
    }
    let hash = keep_prefix(prompts, &fresh)
        .with_context(|| format!("failed to keep the system prompt in {}", prompts.display()))?;
    replace_file(&pointer, 0o600, hash.as_bytes())
        .with_context(|| format!("failed to write {}", pointer.display()))?;
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use query_engine::ports::ToolSpec;

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
                offer: query_engine::ports::Offer::Always,
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
