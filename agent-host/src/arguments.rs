//! What a permission is bound to.

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use swarm_protocol::permission::canonical_arguments;

/// SHA-256 in hex of a call's canonical arguments: tool, directory and input, whatever the order of keys.
pub fn arguments_hash(tool: &str, cwd: Option<&str>, input: &Value) -> String {
    let text = canonical_arguments(tool, cwd, input);
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_the_hash_of_the_canonical_text() {
        // Checked with sha256sum.
        let text = canonical_arguments("Bash", Some("/w"), &json!({"command": "ls"}));
        assert_eq!(text, r#"{"cwd":"/w","input":{"command":"ls"},"tool":"Bash"}"#);
        let hash = arguments_hash("Bash", Some("/w"), &json!({"command": "ls"}));
        assert_eq!(hash, "e456d0e8cd8c40570bb394e54a1c81012e1f56b530765de18a36809c9d663a9f");
    }
}
