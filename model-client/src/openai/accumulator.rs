//! Tool calls put together from the fragments of a chat stream, whatever the server does to them: indexes that
//! are missing or all 0, ids that are empty or new in each chunk, names sent again and again or after the
//! arguments, arguments as objects or twice. Pure; the table of servers is in the tests.

use serde_json::Value;

/// A piece of a call, as it stands in `choices[0].delta.tool_calls[]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fragment {
    pub(super) index: Option<u64>,
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) arguments: Option<String>,
    /// What the provider wants back with the call.
    pub(super) extra: Option<Value>,
}

impl Fragment {
    /// Reads one entry; empty ids and names are none.
    pub(super) fn read(entry: &Value) -> Self {
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let function = &entry["function"];
        let arguments = match &function["arguments"] {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            // Some servers send them parsed.
            other => Some(other.to_string()),
        };
        Self {
            index: entry["index"].as_u64(),
            id: text(&entry["id"]),
            name: text(&function["name"]),
            arguments,
            extra: entry.get("extra_content").filter(|extra| !extra.is_null()).cloned(),
        }
    }
}

/// A call that is being put together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Slot {
    index: Option<u64>,
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) arguments: String,
    pub(super) extra: Option<Value>,
}

/// All calls of one answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Accumulator {
    slots: Vec<Slot>,
    tools: Vec<String>,
}

impl Accumulator {
    /// `tools` are the names that were offered.
    pub(super) fn new(tools: Vec<String>) -> Self {
        Self { slots: Vec::new(), tools }
    }

    /// Whether nothing came yet.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The slot with this number.
    pub(super) fn slot(&self, number: usize) -> &Slot {
        &self.slots[number]
    }

    /// Whether a slot's name is one that was offered, and so surely whole.
    pub(super) fn is_named(&self, number: usize) -> bool {
        self.slots[number].name.as_ref().is_some_and(|name| self.tools.contains(name))
    }

    /// Takes a fragment; answers with the number of the slot it went to.
    pub(super) fn push(&mut self, fragment: Fragment) -> usize {
        let number = self.place(&fragment);
        let number = number.unwrap_or_else(|| {
            self.slots.push(Slot { index: fragment.index, ..Slot::default() });
            self.slots.len() - 1
        });
        let Fragment { index: _, id, name, arguments, extra } = fragment;
        let slot = &mut self.slots[number];
        slot.id = slot.id.take().or(id);
        if let Some(name) = name {
            match &slot.name {
                None => slot.name = Some(name),
                // Never joined blindly: many servers repeat the whole name.
                Some(start) if !self.tools.contains(start) => {
                    let joined = format!("{start}{name}");
                    if self.tools.contains(&joined) {
                        slot.name = Some(joined);
                    }
                }
                Some(_) => {}
            }
        }
        slot.arguments.push_str(arguments.as_deref().unwrap_or_default());
        slot.extra = extra.or(slot.extra.take());
        number
    }

    /// Where a fragment belongs; none: a new slot.
    fn place(&self, fragment: &Fragment) -> Option<usize> {
        let id = fragment.id.as_deref();
        let newest = self.slots.len().checked_sub(1);
        let by_id = |slot: &Slot| id.is_some() && slot.id.as_deref() == id;
        let Some(index) = fragment.index else {
            if let Some(number) = self.slots.iter().rposition(by_id) {
                return Some(number);
            }
            // A call's start names it; a call's id that is new announces a name to come.
            let starts = fragment.name.is_some()
                || (id.is_some() && newest.is_some_and(|number| self.slots[number].id.is_some()));
            return if starts { None } else { newest };
        };
        let with_index = |slot: &Slot| slot.index == Some(index);
        if let Some(number) = self.slots.iter().rposition(|slot| with_index(slot) && by_id(slot)) {
            return Some(number);
        }
        let number = self.slots.iter().rposition(with_index)?;
        let slot = &self.slots[number];
        // The server uses one index for all its calls: another id with a name is another call. Without ids,
        // so is another name after whole arguments.
        let other_id =
            id.is_some() && slot.id.is_some() && slot.id.as_deref() != id && fragment.name.is_some();
        let other_name = id.is_none()
            && fragment.name.is_some()
            && slot.name != fragment.name
            && super::super::tool_input::is_whole(&slot.arguments);
        if other_id || other_name { None } else { Some(number) }
    }

    /// The calls, in order, with their slots' numbers. One that never got a name is dropped.
    pub(super) fn finish(self) -> Vec<(usize, Slot)> {
        let named = |(_, slot): &(usize, Slot)| {
            if slot.name.is_none() {
                tracing::warn!(bytes = slot.arguments.len(), "a tool call without a name was dropped");
            }
            slot.name.is_some()
        };
        let mut slots: Vec<(usize, Slot)> = self.slots.into_iter().enumerate().filter(named).collect();
        for (_, slot) in &mut slots {
            if let Some(end) = end_of_first_object(&slot.arguments) {
                slot.arguments.truncate(end);
            }
        }
        slots
    }
}

/// Where the first of several whole objects ends: servers that send the arguments twice mean them once.
fn end_of_first_object(arguments: &str) -> Option<usize> {
    // Most arguments are one object; only a second one after it is worth parsing for.
    if !arguments.contains("}{") && !arguments.contains("}\n{") && !arguments.contains("} {") {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(arguments).into_iter::<Value>();
    let first = values.next()?.ok()?;
    let end = values.byte_offset();
    let mut n_more = 0;
    for value in values {
        if !value.ok()?.is_object() {
            return None;
        }
        n_more += 1;
    }
    (first.is_object() && n_more > 0).then_some(end)
}

#[cfg(test)]
mod tests;
