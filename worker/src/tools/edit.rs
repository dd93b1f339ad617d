//! Edit: replace pieces of a file, all of them or none. Where a piece stands is the ladder's (`ladder`); what is
//! only like it is for a person to agree to (`alike`), and else a hint (`near`).

use std::{fmt::Write as _, ops::Range, sync::Arc};

use async_trait::async_trait;
use query_engine::ports::{Subject, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Files, blocking,
    change::Draft,
    lenient_bool,
    notebook::Notebook,
    parse,
    view::{self, Patch, TextView},
};

mod alike;
mod ladder;
mod near;

use alike::Alike;
use ladder::{Found, Rung};

/// Line numbers named when a text stands there more than once.
const MAX_NAMED_LINES: usize = 10;
/// Lines shown of a place that is like the text.
const SHOWN_LINES: usize = 40;

/// The tool.
pub struct Edit {
    files: Arc<Files>,
}

impl Edit {
    /// Over these files.
    pub fn new(files: Arc<Files>) -> Self {
        Self { files }
    }
}

#[derive(Deserialize)]
struct Input {
    file_path: String,
    #[serde(default)]
    old_string: Option<String>,
    #[serde(default)]
    new_string: Option<String>,
    #[serde(default, deserialize_with = "lenient_bool")]
    replace_all: bool,
    #[serde(default, deserialize_with = "lenient_blocks")]
    edits: Vec<Block>,
}

/// One piece to replace.
#[derive(Deserialize)]
struct Block {
    old_string: String,
    new_string: String,
    #[serde(default, deserialize_with = "lenient_bool")]
    replace_all: bool,
}

/// A list that models now and then write as a string.
fn lenient_blocks<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Block>, D::Error> {
    use serde::de::Error as _;
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => serde_json::from_str(&text).map_err(D::Error::custom),
        other => serde_json::from_value(other).map_err(D::Error::custom),
    }
}

impl Input {
    /// The path and the pieces, with plain line ends.
    fn blocks(self) -> Result<(String, Vec<Block>), String> {
        let blocks = match (self.old_string, self.new_string, self.edits) {
            (Some(old_string), Some(new_string), edits) if edits.is_empty() => {
                vec![Block { old_string, new_string, replace_all: self.replace_all }]
            }
            (None, None, edits) if !edits.is_empty() => edits,
            (_, _, edits) if edits.is_empty() => {
                return Err("Edit needs `old_string` and `new_string`, or `edits`.".to_owned());
            }
            _ => {
                return Err(
                    "Edit takes either `old_string` and `new_string`, or `edits`, not both.".to_owned()
                );
            }
        };
        let plain = |block: Block| Block {
            old_string: view::plain_line_ends(&block.old_string),
            new_string: view::plain_line_ends(&block.new_string),
            ..block
        };
        Ok((self.file_path, blocks.into_iter().map(plain).collect()))
    }
}

#[async_trait]
impl Tool for Edit {
    fn name(&self) -> &str {
        "Edit"
    }

    fn description(&self) -> String {
        "Replaces `old_string` by `new_string` in a file that was read before. `old_string` should be exactly what \
         stands there (indentation included, line numbers of Read left out) and stand there once, unless \
         `replace_all` is true. Several replacements in one file go into `edits` instead: all are made or none; \
         each is looked for in the file as it is before the call, and they must not overlap. Line ends, encoding \
         and mode of the file are kept. For notebooks use NotebookEdit."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "file_path": {"type": "string"},
                "old_string": {"type": "string"},
                "new_string": {"type": "string"},
                "replace_all": {"type": "boolean", "description": "Replace every occurrence"},
                "edits": {
                    "type": "array",
                    "description": "Several replacements, in place of the three above",
                    "items": {
                        "type": "object",
                        "properties": {
                            "old_string": {"type": "string"},
                            "new_string": {"type": "string"},
                            "replace_all": {"type": "boolean"}
                        },
                        "required": ["old_string", "new_string"]
                    }
                }
            },
            "required": ["file_path"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    fn subjects(&self, input: &Value) -> Vec<Subject> {
        self.files.path_of(input).map(Subject::Write).into_iter().collect()
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let input: Input = match parse("Edit", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        let files = self.files.clone();
        blocking("Edit", move || edit(&files, input, &context).unwrap_or_else(ToolOutput::error)).await
    }
}

/// What an edit would do to a place that is only like what it names: for a person to say.
#[derive(Debug)]
pub struct Doubt {
    /// The places: how alike, where, and what stands there.
    pub sentence: String,
    /// What stands in the file.
    pub texts: Vec<String>,
}

/// Whether an edit would need somebody's word. It looks at the file, so it may wait for the disk.
pub fn doubt(files: &Files, input: &Value) -> Option<Doubt> {
    let input: Input = parse("Edit", input.clone()).ok()?;
    let (given, blocks) = input.blocks().ok()?;
    let draft = Draft::look(files, &given).ok()?;
    let plan = plan(&draft, &given, &blocks).ok()?;
    if plan.alike.is_empty() {
        return None;
    }
    let places: Vec<String> = plan.alike.iter().map(|(_, alike)| whereabouts(alike)).collect();
    Some(Doubt {
        sentence: format!(
            "old_string does not stand in the file; {} {} would be replaced",
            places.join(" and "),
            if places.len() == 1 { "is like it and" } else { "are like it and" }
        ),
        texts: plan.alike.into_iter().map(|(_, alike)| alike.text).collect(),
    })
}

/// `what stands in lines 3 to 5 (93 % alike)`.
fn whereabouts(alike: &Alike) -> String {
    let (first, last) = (alike.lines.start, alike.lines.end - 1);
    let lines = if first == last { format!("line {first}") } else { format!("lines {first} to {last}") };
    format!("what stands in {lines} ({} % alike)", alike.percent)
}

fn edit(files: &Files, input: Input, context: &ToolContext) -> Result<ToolOutput, String> {
    let (given, blocks) = input.blocks()?;
    let agreed = files.agreed(&context.tool_use_id);
    let draft = Draft::open(files, &context.tool_use_id, &given)?;
    if given.ends_with(".ipynb") && Notebook::parse(draft.view().text()).is_ok() {
        return Err(format!("{given} is a notebook. Change its cells with NotebookEdit."));
    }
    let plan = plan(&draft, &given, &blocks)?;
    for (index, alike) in &plan.alike {
        if !agreed.contains(&alike.text) {
            let mut shown: Vec<&str> = alike.text.lines().take(SHOWN_LINES).collect();
            if alike.text.lines().count() > SHOWN_LINES {
                shown.push("...");
            }
            return Err(format!(
                "{}old_string was not found in {given}. Nearest is {}:\n{}\nNothing was changed; if you mean it, name it as it stands there.",
                block_name(*index, &blocks),
                whereabouts(alike),
                shown.join("\n")
            ));
        }
    }
    let mut notes = plan.notes;
    notes.extend(plan.alike.iter().map(|(_, alike)| {
        format!("A person agreed to replace {}, which is not exactly your old_string.", whereabouts(alike))
    }));
    draft.write(&plan.patches, &notes, &context.cancel)
}

/// All that an edit will do.
struct Plan {
    patches: Vec<Patch>,
    notes: Vec<String>,
    /// Blocks that only something like them stands for; their patches are among the others.
    alike: Vec<(usize, Alike)>,
}

fn block_name(index: usize, blocks: &[Block]) -> String {
    if blocks.len() == 1 { String::new() } else { format!("Nothing was changed. edits[{index}]: ") }
}

fn plan(draft: &Draft<'_>, given: &str, blocks: &[Block]) -> Result<Plan, String> {
    let text = draft.view().text();
    let mut plan = Plan { patches: Vec::new(), notes: Vec::new(), alike: Vec::new() };
    let mut owners: Vec<(Range<usize>, usize)> = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let name = block_name(index, blocks);
        let Block { old_string: old, new_string: new, replace_all } = block;
        if old.is_empty() {
            return Err(format!("{name}old_string is empty. To make or overwrite a file use Write."));
        }
        if old == new {
            return Err(format!("{name}old_string and new_string are equal; nothing would change."));
        }
        let patches = match ladder::find(text, old, new, *replace_all) {
            Some(found) if found.patches.len() > 1 && !replace_all => {
                return Err(format!("{name}{}", several(draft.view(), given, old, &found)));
            }
            Some(found) => {
                plan.notes.extend(note(text, old, &found));
                found.patches
            }
            None => {
                if let Some(changed) = draft.changed() {
                    return Err(format!(
                        "{name}old_string was not found in {given}, and {changed}Read it again before you edit it."
                    ));
                }
                let Some(alike) = alike::find(text, old, new) else {
                    return Err(format!(
                        "{name}old_string was not found in {given}.{}{}",
                        earlier(index, blocks, old),
                        near::hint(text, old)
                    ));
                };
                let patch = alike.patch.clone();
                plan.alike.push((index, alike));
                vec![patch]
            }
        };
        owners.extend(patches.iter().map(|patch| (patch.range.clone(), index)));
        plan.patches.extend(patches);
    }
    owners.sort_by_key(|(range, _)| range.start);
    if let Some(pair) = owners.windows(2).find(|pair| pair[0].0.end > pair[1].0.start) {
        return Err(format!(
            "Nothing was changed. edits[{}] and edits[{}] overlap at line {}; make one of them.",
            pair[0].1.min(pair[1].1),
            pair[0].1.max(pair[1].1),
            draft.view().line_of(pair[1].0.start)
        ));
    }
    plan.patches.sort_by_key(|patch| patch.range.start);
    let targets: Vec<Range<usize>> = plan.patches.iter().map(|patch| patch.range.clone()).collect();
    plan.notes.extend(draft.check(&targets)?);
    Ok(plan)
}

/// That a text comes only by an earlier replacement of the call.
fn earlier(index: usize, blocks: &[Block], old: &str) -> String {
    match blocks[..index].iter().position(|block| block.new_string.contains(old)) {
        Some(earlier) => format!(
            " It stands in the new_string of edits[{earlier}], but each is looked for in the file as it was; write both into one."
        ),
        None => String::new(),
    }
}

/// That a text stands there more than once.
fn several(view: &TextView, given: &str, old: &str, found: &Found) -> String {
    let places = found.patches.iter().take(MAX_NAMED_LINES).map(|patch| {
        let line = view.line_of(patch.range.start);
        match found.rung {
            Rung::Typography => format!("{line}{}", differing(&view.text()[patch.range.clone()], old)),
            Rung::Exact | Rung::Trimmed | Rung::Indentation => line.to_string(),
        }
    });
    let places: Vec<String> = places.collect();
    let more = if found.patches.len() > MAX_NAMED_LINES { ", .." } else { "" };
    let but_for = match found.rung {
        Rung::Exact => "",
        Rung::Typography => ", but for quotes and spaces,",
        Rung::Trimmed | Rung::Indentation => ", but for white space,",
    };
    format!(
        "old_string stands{but_for} {} times in {given}, at lines {}{more}. Add lines around it until it is unique, or set replace_all.",
        found.patches.len(),
        places.join(", ")
    )
}

/// ` (U+00A0 for U+0020)`: each pair of characters once.
fn differing(there: &str, old: &str) -> String {
    let mut pairs: Vec<String> = Vec::new();
    for (theirs, ours) in there.chars().zip(old.chars()).filter(|(theirs, ours)| theirs != ours) {
        let pair = format!("U+{:04X} for U+{:04X}", u32::from(theirs), u32::from(ours));
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    if pairs.is_empty() { String::new() } else { format!(" ({})", pairs.join(", ")) }
}

/// What was tolerated.
fn note(text: &str, old: &str, found: &Found) -> Option<String> {
    let first = found.patches.first()?;
    match found.rung {
        Rung::Exact => None,
        Rung::Typography => Some(format!(
            "The file writes it with other quotes or spaces{}; they were kept where you changed nothing.",
            differing(&text[first.range.clone()], old)
        )),
        Rung::Trimmed => Some(
            "White space around its lines was not as you named it; that of the file was kept.".to_owned(),
        ),
        Rung::Indentation => {
            let mut note = "Its indentation was not as you named it; the file's was used".to_owned();
            if first.new.contains('\t') && !old.contains('\t') {
                let _ = write!(note, ", which has tabs");
            }
            note.push('.');
            Some(note)
        }
    }
}
