//! Tools that the model is told the names of only (spec 4.5): how it finds them, and how it calls them where the
//! provider keeps no definitions back.
//!
//! The list of tools is the same in every request, whoever is asked: a provider that defers gets all of them, the
//! deferred ones marked; the others get [`CALL_TOOL`] in their place. What was found stands in the history.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::ResultBlock;

use crate::ports::{Offer, Tool, ToolContext, ToolOutput, ToolSpec};

/// Finds deferred tools.
pub const TOOL_SEARCH: &str = "ToolSearch";
/// Calls a deferred tool for a provider that was not given its definition.
pub const CALL_TOOL: &str = "CallTool";
/// So many tools answer a search by words.
const MAX_FOUND: usize = 5;
/// What a word of a query counts for where it is found.
const HINT: u32 = 4;
const NAME: u32 = 2;
const DESCRIPTION: u32 = 1;

/// These tools, with what is needed to find and call those that are deferred.
pub fn with_search(mut tools: Vec<Arc<dyn Tool>>) -> Vec<Arc<dyn Tool>> {
    let deferred: Vec<Arc<dyn Tool>> = tools.iter().filter(|tool| tool.should_defer()).cloned().collect();
    if !deferred.is_empty() {
        tools.push(Arc::new(ToolSearch { deferred }));
        tools.push(Arc::new(CallTool));
    }
    tools
}

/// What the model is told of its deferred tools; none: there are none.
pub fn announcement(tools: &[Arc<dyn Tool>]) -> Option<String> {
    let mut names: Vec<&str> =
        tools.iter().filter(|tool| tool.should_defer()).map(|tool| tool.name()).collect();
    names.sort_unstable();
    (!names.is_empty()).then(|| {
        format!("Further tools, which {TOOL_SEARCH} loads before they can be called: {}", names.join(", "))
    })
}

/// What the model is told when a summary took the place of what it had found; none: it had found nothing.
pub(crate) fn after_compaction(found: &BTreeSet<String>) -> Option<String> {
    let names: Vec<&str> = found.iter().map(String::as_str).collect();
    (!names.is_empty()).then(|| {
        let names = names.join(",");
        format!(
            "<system-reminder>\nTools that {TOOL_SEARCH} had loaded before the summary have to be loaded again before they \
             are called: `select:{names}`.\n</system-reminder>"
        )
    })
}

/// A tool as the provider is told of it.
pub(crate) fn spec(tool: &dyn Tool) -> ToolSpec {
    let offer = match tool.name() {
        CALL_TOOL => Offer::InPlaceOfDeferred,
        _ if tool.should_defer() => Offer::Deferred,
        _ => Offer::Always,
    };
    ToolSpec {
        name: tool.name().to_owned(),
        description: tool.description(),
        input_schema: tool.input_schema(),
        offer,
    }
}

/// The tool and the input that a [`CALL_TOOL`] means; none: the call means itself.
///
/// # Errors
/// What is wrong with it, for the model.
pub(crate) fn meant(name: &str, input: &Value) -> Result<Option<(String, Value)>, String> {
    if name != CALL_TOOL {
        return Ok(None);
    }
    let Within { name, input } = Within::deserialize(input)
        .map_err(|error| format!("The input of {CALL_TOOL} does not fit its schema: {error}."))?;
    match name.as_str() {
        CALL_TOOL => Err(format!("{CALL_TOOL} does not call itself.")),
        _ => Ok(Some((name, input))),
    }
}

#[derive(Deserialize)]
struct Within {
    name: String,
    #[serde(default = "empty_object")]
    input: Value,
}

fn empty_object() -> Value {
    json!({})
}

struct ToolSearch {
    deferred: Vec<Arc<dyn Tool>>,
}

#[derive(Deserialize)]
struct Query {
    query: String,
}

impl ToolSearch {
    /// By name (`select:A,B`), else by words: the best first.
    fn find(&self, query: &str) -> Vec<&Arc<dyn Tool>> {
        if let Some(names) = query.trim().strip_prefix("select:") {
            let wanted = names.split(',').map(str::trim);
            return wanted
                .filter_map(|name| self.deferred.iter().find(|tool| tool.name().eq_ignore_ascii_case(name)))
                .collect();
        }
        let words: Vec<String> = query
            .split(|character: char| !character.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .map(str::to_lowercase)
            .collect();
        let mut found: Vec<(u32, &Arc<dyn Tool>)> = self
            .deferred
            .iter()
            .map(|tool| (score(tool.as_ref(), &words), tool))
            .filter(|(score, _)| *score > 0)
            .collect();
        found.sort_by(|(left, a), (right, b)| right.cmp(left).then_with(|| a.name().cmp(b.name())));
        found.into_iter().take(MAX_FOUND).map(|(_, tool)| tool).collect()
    }
}

fn score(tool: &dyn Tool, words: &[String]) -> u32 {
    let (hint, name, description) =
        (tool.search_hint().to_lowercase(), tool.name().to_lowercase(), tool.description().to_lowercase());
    let weigh = |word: &String| {
        u32::from(hint.contains(word)) * HINT
            + u32::from(name.contains(word)) * NAME
            + u32::from(description.contains(word)) * DESCRIPTION
    };
    words.iter().map(weigh).sum()
}

#[async_trait]
impl Tool for ToolSearch {
    fn name(&self) -> &str {
        TOOL_SEARCH
    }

    fn description(&self) -> String {
        "Loads tools that you were told the names of only. `select:Name,Other` loads these; other words look for tools \
         by what they do, at most five. What it answers with can be called from then on."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "`select:Name` or words"}
            },
            "required": ["query"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        true
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        true
    }

    /// A definition that is cut defines nothing.
    fn max_result_size_chars(&self) -> Option<usize> {
        None
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        let query: Query = match serde_json::from_value(input) {
            Ok(query) => query,
            Err(error) => {
                return ToolOutput::error(format!(
                    "The input of {TOOL_SEARCH} does not fit its schema: {error}."
                ));
            }
        };
        let found = self.find(&query.query);
        if found.is_empty() {
            let mut names: Vec<&str> = self.deferred.iter().map(|tool| tool.name()).collect();
            names.sort_unstable();
            return ToolOutput::error(format!(
                "No further tool fits `{}`. There are: {}.",
                query.query,
                names.join(", ")
            ));
        }
        let content = found.into_iter().map(|tool| ResultBlock::ToolReference {
            name: tool.name().to_owned(),
            definition: definition(tool.as_ref()),
        });
        ToolOutput { content: content.collect(), ..ToolOutput::text("") }
    }
}

/// What a provider that defers nothing shows to its model.
fn definition(tool: &dyn Tool) -> String {
    let definition = json!({
        "name": tool.name(),
        "description": tool.description(),
        "input_schema": tool.input_schema(),
    });
    format!("Call it with {CALL_TOOL}, its arguments as `input`: {definition}")
}

/// Stands in the list of tools for those that a provider was not told of. The executor runs what it means, so this
/// is never called itself.
struct CallTool;

#[async_trait]
impl Tool for CallTool {
    fn name(&self) -> &str {
        CALL_TOOL
    }

    fn description(&self) -> String {
        format!("Calls a tool that {TOOL_SEARCH} found, with the arguments of its schema.")
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "input": {"type": "object"}
            },
            "required": ["name", "input"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    async fn call(&self, _: Value, _: ToolContext) -> ToolOutput {
        ToolOutput::error(format!("{CALL_TOOL} needs the name of another tool."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Behaviour, FakeTool};

    fn search() -> ToolSearch {
        let tool = |name: &str, hint: &'static str| -> Arc<dyn Tool> {
            Arc::new(FakeTool::new(name, Behaviour::Hang, true).deferred(hint))
        };
        ToolSearch {
            deferred: vec![
                tool("Notebook", "jupyter cells"),
                tool("Cron", "remind later"),
                tool("Jupyter", ""),
            ],
        }
    }

    #[test]
    fn a_hint_counts_more_than_a_name_and_a_name_more_than_a_description() {
        let search = search();
        let names = |query: &str| -> Vec<String> {
            search.find(query).iter().map(|tool| tool.name().to_owned()).collect()
        };
        assert_eq!(names("jupyter"), ["Notebook", "Jupyter"]);
        assert_eq!(names("remind me"), ["Cron"]);
        assert_eq!(names("tool"), ["Cron", "Jupyter", "Notebook"], "each description has the word");
        assert_eq!(names("select:Cron, notebook,Nothing"), ["Cron", "Notebook"]);
        assert!(names("weather").is_empty() && names("  ").is_empty() && names("select:").is_empty());
    }

    #[test]
    fn a_call_within_a_call_is_what_is_meant() {
        let within = |input: Value| meant(CALL_TOOL, &input);
        let means = |name: &str, input: Value| Ok(Some((name.to_owned(), input)));
        assert_eq!(within(json!({"name": "Cron", "input": {"a": 1}})), means("Cron", json!({"a": 1})));
        assert_eq!(within(json!({"name": "Cron"})), means("Cron", json!({})));
        assert!(within(json!({"input": {}})).is_err());
        assert!(within(json!({"name": CALL_TOOL, "input": {}})).is_err());
        assert_eq!(meant("Read", &json!({"name": "x"})), Ok(None));
    }
}
