//! OpenAI's two wire formats: chat completions for the many servers that resemble it, Responses for OpenAI
//! itself.

mod accumulator;
mod chat;
mod chat_request;
mod chat_stream;
mod learned;
mod responses;
mod responses_request;
mod responses_stream;
mod unparsed_call;

pub(crate) use chat::Chat;
pub(crate) use responses::Responses;

use swarm_protocol::{Block, ResultBlock};

use crate::images;

/// A tool's answer as one text; these formats have no flag for an error and no place for a picture.
fn result_text(content: &[ResultBlock], is_error: bool) -> String {
    let mut texts: Vec<String> = content
        .iter()
        .map(|block| match block {
            ResultBlock::Text { text } | ResultBlock::ToolReference { definition: text, .. } => text.clone(),
            ResultBlock::Image { media_type, data } => images::problem(media_type, data)
                .unwrap_or_else(|| format!("[image of type {media_type}: see the next message]")),
        })
        .collect();
    texts.retain(|text| !text.trim().is_empty());
    let text = if texts.is_empty() { "(no output)".to_owned() } else { texts.join("\n") };
    if is_error { format!("[error] {text}") } else { text }
}

/// An image that the provider may take, as a data URL; else the line that stands for it.
fn image_url(media_type: &str, data: &str) -> Result<String, String> {
    match images::problem(media_type, data) {
        None => Ok(format!("data:{media_type};base64,{data}")),
        Some(problem) => Err(problem),
    }
}

/// The pictures of a message's tool results, which follow them in a message of the user.
fn result_images(content: &[Block]) -> Vec<String> {
    let results = content.iter().filter_map(|block| match block {
        Block::ToolResult { content, .. } => Some(content),
        _ => None,
    });
    results
        .flatten()
        .filter_map(|block| match block {
            ResultBlock::Image { media_type, data } => image_url(media_type, data).ok(),
            ResultBlock::Text { .. } | ResultBlock::ToolReference { .. } => None,
        })
        .collect()
}

/// The fold of a Responses stream alone, for the fuzz target.
#[cfg(any(test, feature = "test-support"))]
pub(crate) fn responses_decoder(
    request: &query_engine::ports::ModelRequest,
) -> impl crate::decoder::Decoder + use<> {
    responses_stream::Decoder::new(request, 0)
}

/// The fold of a chat stream alone, for the fuzz target.
#[cfg(any(test, feature = "test-support"))]
pub(crate) fn chat_decoder(
    request: &query_engine::ports::ModelRequest,
) -> impl crate::decoder::Decoder + use<> {
    chat_stream::Decoder::new(request, 0, "fuzz")
}
