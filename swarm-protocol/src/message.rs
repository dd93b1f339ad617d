//! A conversation with a model, in the shape the engine works with. Vendors' JSON is `model-client`'s.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::ToolUseId;

/// Who a message is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything that is not the model: a person, tool results, notifications, reminders.
    User,
    /// The model.
    Assistant,
}

/// One message. Once appended to a conversation it never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said, in order; never empty.
    #[cfg_attr(feature = "schema", schema(no_recursion))]
    pub content: Vec<Block>,
}

impl Message {
    /// A user message of these blocks.
    pub fn user(content: Vec<Block>) -> Self {
        Self { role: Role::User, content }
    }

    /// An assistant message of these blocks.
    pub fn assistant(content: Vec<Block>) -> Self {
        Self { role: Role::Assistant, content }
    }

    /// A user message of one text.
    pub fn user_text(text: impl Into<String>) -> Self {
        Self::user(vec![Block::text(text)])
    }

    /// The texts of this message, joined by line breaks.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.content.iter().filter_map(Block::as_text).collect();
        texts.join("\n")
    }

    /// The tool calls of this message, in order.
    pub fn tool_uses(&self) -> impl Iterator<Item = (&ToolUseId, &str, &Value)> {
        self.content.iter().filter_map(|block| match block {
            Block::ToolUse { id, name, input, .. } => Some((id, name.as_str(), input)),
            _ => None,
        })
    }
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Words.
    Text {
        /// The words.
        text: String,
    },
    /// The model's thinking, kept byte for byte and sent back to the same provider and model only.
    Thinking {
        /// The thinking, often empty when the provider hides it.
        thinking: String,
        /// The provider's signature over it.
        signature: String,
    },
    /// Thinking that the provider encrypted.
    RedactedThinking {
        /// Opaque data.
        data: String,
    },
    /// A tool call.
    ToolUse {
        /// The provider's id of the call.
        id: ToolUseId,
        /// The tool's name.
        name: String,
        /// The arguments: always an object, in the key order the model wrote.
        input: Value,
        /// Fields of the provider that must go back with this call, unchanged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_data: Option<Value>,
    },
    /// The answer to a tool call.
    ToolResult {
        /// The call it answers.
        tool_use_id: ToolUseId,
        /// The answer; never empty.
        content: Vec<ResultBlock>,
        /// Whether the call failed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
    /// A picture in a message of the user.
    Image {
        /// `image/png` and the like.
        media_type: String,
        /// Base64.
        data: String,
    },
    /// Content of one provider that others do not understand (encrypted reasoning, say): sent back
    /// unchanged to the same provider, left out elsewhere.
    Opaque {
        /// Which provider understands it.
        provider: String,
        /// The content, as it came.
        data: Value,
    },
}

impl Block {
    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// A successful answer of one text; an empty text becomes `(no output)`, since providers refuse empty
    /// content.
    pub fn tool_result(tool_use_id: ToolUseId, text: impl Into<String>, is_error: bool) -> Self {
        Self::ToolResult { tool_use_id, content: vec![ResultBlock::text(text)], is_error }
    }

    /// The words, if this block is words.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text } => Some(text),
            _ => None,
        }
    }
}

/// A part of a tool's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResultBlock {
    /// Words.
    Text {
        /// The words.
        text: String,
    },
    /// A picture.
    Image {
        /// `image/png` and the like.
        media_type: String,
        /// Base64.
        data: String,
    },
    /// A tool that a search found. Providers that were given its definition get the name, others the definition.
    ToolReference {
        /// The tool.
        name: String,
        /// Its definition, as words.
        definition: String,
    },
}

impl ResultBlock {
    /// What can be read of it; a picture has no words.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text } => Some(text),
            Self::ToolReference { definition, .. } => Some(definition),
            Self::Image { .. } => None,
        }
    }

    /// Whether it says nothing, which providers refuse.
    pub fn is_blank(&self) -> bool {
        match self {
            Self::Text { text } => text.trim().is_empty(),
            Self::Image { data, .. } => data.is_empty(),
            Self::ToolReference { name, .. } => name.is_empty(),
        }
    }

    /// Words; an empty or blank text becomes `(no output)`.
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.trim().is_empty() {
            Self::Text { text: "(no output)".to_owned() }
        } else {
            Self::Text { text }
        }
    }
}
