//! Pure text work on memory files.

/// Drops HTML comments that begin a line, outside code fences: notes for people, not for agents.
pub(super) fn without_block_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut fence: Option<(char, usize)> = None;
    let mut in_comment = false;
    for line in text.split_inclusive('\n') {
        if in_comment {
            in_comment = !line.contains("-->");
            continue;
        }
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if let Some((mark, length)) = fence {
            if run(trimmed, mark) >= length && trimmed.trim_end().chars().all(|c| c == mark) {
                fence = None;
            }
        } else if indent <= 3 && (run(trimmed, '`') >= 3 || run(trimmed, '~') >= 3) {
            let mark = if trimmed.starts_with('`') { '`' } else { '~' };
            fence = Some((mark, run(trimmed, mark)));
        } else if indent <= 3 && trimmed.starts_with("<!--") {
            in_comment = !trimmed["<!--".len()..].contains("-->");
            continue;
        }
        out.push_str(line);
    }
    out
}

fn run(text: &str, mark: char) -> usize {
    text.chars().take_while(|c| *c == mark).count()
}

/// A text within a budget.
pub(super) struct Cut {
    pub(super) text: String,
    pub(super) kept_bytes: usize,
}

/// Less than this of a file says nothing.
const LEAST_BYTES: usize = 200;

/// Keeps whole lines from the start, and says what is missing.
pub(super) fn cut_to(text: &str, budget: usize) -> Cut {
    if text.len() <= budget {
        return Cut { text: text.to_owned(), kept_bytes: text.len() };
    }
    let total = text.len();
    if budget < LEAST_BYTES {
        return Cut {
            text: format!("[left out: {total} bytes; read the file if it matters]"),
            kept_bytes: 0,
        };
    }
    let mut end = budget;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // A single long line is cut inside.
    let end = text[..end].rfind('\n').filter(|at| *at >= LEAST_BYTES).unwrap_or(end);
    let kept = &text[..end];
    Cut {
        text: format!("{kept}\n[cut: {end} of {total} bytes are shown; read the file for the rest]"),
        kept_bytes: end,
    }
}
