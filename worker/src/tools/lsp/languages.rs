//! Which server speaks which language. The table names programs that people know; a setting adds to it, and wins.

use std::{ffi::OsStr, os::unix::fs::PermissionsExt as _, path::Path};

use swarm_protocol::launch::LanguageServer;

/// Extensions, the program with its arguments.
const TABLE: [(&[&str], &[&str]); 5] = [
    (&["rs"], &["rust-analyzer"]),
    (&["go"], &["gopls"]),
    (&["py", "pyi"], &["pyright-langserver", "--stdio"]),
    (&["ts", "tsx", "mts", "cts", "js", "jsx", "mjs", "cjs"], &["typescript-language-server", "--stdio"]),
    (&["c", "h", "cc", "cpp", "cxx", "hh", "hpp", "hxx"], &["clangd"]),
];

/// All servers, a person's own first.
pub(super) fn servers(own: &[LanguageServer]) -> Vec<LanguageServer> {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    let table = TABLE.iter().map(|(extensions, command)| LanguageServer {
        extensions: texts(extensions),
        command: texts(command),
    });
    own.iter().cloned().chain(table).collect()
}

/// The protocol's name for the language of a file, as servers know it.
pub(super) fn language_id(extension: &str) -> &str {
    match extension {
        "rs" => "rust",
        "py" | "pyi" => "python",
        "ts" | "mts" | "cts" => "typescript",
        "tsx" => "typescriptreact",
        "js" | "mjs" | "cjs" => "javascript",
        "jsx" => "javascriptreact",
        "h" | "c" => "c",
        "cc" | "cpp" | "cxx" | "hh" | "hpp" | "hxx" => "cpp",
        other => other,
    }
}

/// Whether a program can be started: an absolute path, or a name on this PATH.
pub(super) fn is_there(program: &str, path: Option<&OsStr>) -> bool {
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return is_program(Path::new(program));
    }
    path.is_some_and(|path| std::env::split_paths(path).any(|directory| is_program(&directory.join(program))))
}
