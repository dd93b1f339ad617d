//! What an edit did to a file in the eyes of its language server: new problems stand below the tool's own answer. Only
//! where the server runs already, and for a short time: an edit must not wait for one to start.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use lsp_types::{Diagnostic, DiagnosticSeverity};
use query_engine::ports::{Around, Tool, ToolContext, ToolOutput, Wrapped};
use serde_json::Value;
use swarm_protocol::{ResultBlock, record::ToolEffect};
use tokio::time::Instant;

use super::{
    answers::{Columns, Shown, message},
    registry::Languages,
    source,
};
use crate::tools::Files;

/// How long an edit waits for the server's word.
const TIME: Duration = Duration::from_secs(3);
/// Problems that are told.
const MAX_TOLD: usize = 5;

/// A tool that changes files, and the servers that look at them.
pub struct WithDiagnostics {
    files: Arc<Files>,
    languages: Arc<Languages>,
}

impl WithDiagnostics {
    /// Around this tool.
    pub fn new(tool: Arc<dyn Tool>, files: Arc<Files>, languages: Arc<Languages>) -> Wrapped<Self> {
        Wrapped::new(tool, Self { files, languages })
    }

    async fn new_problems(&self, path: &Path) -> Option<String> {
        let (place, client) = self.languages.running(path)?;
        let source = source(path, "it").await.ok()?;
        let before = client.published(path);
        let had_published = client.has_published(path);
        if !client.show(path, place.language(), &source).await.ok()? {
            return None;
        }
        let after = client.published_after(path, &before, Instant::now() + TIME).await?;
        // Of a file that the server had not seen, everything would be new.
        if !had_published {
            return None;
        }
        let new = new_ones(&before.list, &after.list);
        let n_more = new.len().saturating_sub(MAX_TOLD);
        let told: Vec<Diagnostic> = new.into_iter().take(MAX_TOLD).cloned().collect();
        if told.is_empty() {
            return None;
        }
        let shown = Shown { files: &self.files, columns: Columns { counts_bytes: client.counts_bytes } };
        let more = if n_more > 0 { format!("[{n_more} more; see LSP diagnostics]\n") } else { String::new() };
        let list = shown.diagnostics(path, &source, &told);
        Some(format!("New problems, says {}:\n{list}{more}", place.program()))
    }
}

/// Errors and warnings that were not there before; lines may have moved.
fn new_ones<'a>(before: &[Diagnostic], after: &'a [Diagnostic]) -> Vec<&'a Diagnostic> {
    let mut known: HashMap<String, usize> = HashMap::new();
    for one in before {
        *known.entry(message(one)).or_default() += 1;
    }
    let weighs = |one: &&Diagnostic| {
        !matches!(one.severity, Some(DiagnosticSeverity::INFORMATION | DiagnosticSeverity::HINT))
    };
    let mut new: Vec<&Diagnostic> = after.iter().filter(weighs).collect();
    new.retain(|one| match known.get_mut(&message(one)) {
        Some(count @ 1..) => {
            *count -= 1;
            false
        }
        _ => true,
    });
    // Errors are numbered before warnings.
    new.sort_by_key(|one| (one.severity == Some(DiagnosticSeverity::WARNING), one.range.start.line));
    new
}

#[async_trait]
impl Around for WithDiagnostics {
    async fn call(&self, tool: &dyn Tool, input: Value, context: ToolContext) -> ToolOutput {
        let cancel = context.cancel.clone();
        let mut output = tool.call(input, context).await;
        let ToolEffect::Edited { path, .. } = &output.effect else { return output };
        let path = Path::new(path).to_owned();
        // The edit is done; only the server's word on it is given up.
        let problems = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            problems = self.new_problems(&path) => problems,
        };
        output.content.extend(problems.map(ResultBlock::text));
        output
    }
}

#[cfg(test)]
mod tests {
    use lsp_types::{Position, Range};

    use super::*;

    fn problem(line: u32, severity: DiagnosticSeverity, message: &str) -> Diagnostic {
        let at = Range::new(Position::new(line, 0), Position::new(line, 1));
        Diagnostic {
            range: at,
            severity: Some(severity),
            message: message.to_owned(),
            ..Diagnostic::default()
        }
    }

    #[test]
    fn only_problems_that_were_not_there_are_new_wherever_they_stand_now() {
        let (error, warning, hint) =
            (DiagnosticSeverity::ERROR, DiagnosticSeverity::WARNING, DiagnosticSeverity::HINT);
        let before = [problem(1, error, "a"), problem(5, warning, "b")];
        let after = [
            problem(9, error, "a"),
            problem(2, warning, "c"),
            problem(10, error, "a"),
            problem(3, hint, "d"),
            problem(4, error, "e"),
        ];
        let new: Vec<_> =
            new_ones(&before, &after).iter().map(|one| (one.range.start.line, &*one.message)).collect();
        assert_eq!(new, [(4, "e"), (10, "a"), (2, "c")]);
        assert!(new_ones(&after, &after).is_empty());
    }
}
