//! Where cache breakpoints stand (spec 3.6): after tools and system, at the last message, and at one before
//! it, so that a turn of more than 20 blocks still finds what was written.

use std::sync::Arc;

use swarm_protocol::Message;

use crate::ports::Breakpoint;

/// How far a provider looks back from a breakpoint, in blocks.
const LOOK_BACK_BLOCKS: usize = 20;

/// The breakpoints of a request with these messages. `sent`: how many of them the request before had.
pub fn breakpoints(messages: &[Arc<Message>], sent: usize) -> Vec<Breakpoint> {
    let mut breakpoints = vec![Breakpoint::Prefix];
    let Some(last) = messages.len().checked_sub(1) else { return breakpoints };
    // Where the request before ended there is an entry to be found.
    if let Some(before) = sent.checked_sub(1).filter(|before| *before < last) {
        breakpoints.push(Breakpoint::Message(before));
    }
    let added: usize = messages.iter().skip(sent).map(|message| message.content.len()).sum();
    if added > LOOK_BACK_BLOCKS && last >= 1 && !breakpoints.contains(&Breakpoint::Message(last - 1)) {
        breakpoints.push(Breakpoint::Message(last - 1));
    }
    breakpoints.push(Breakpoint::Message(last));
    breakpoints
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_protocol::Block;

    #[test]
    fn at_most_four_and_the_last_message_always() {
        let message = |blocks: usize| Message::user(vec![Block::text("x"); blocks]);
        let check = |sizes: &[usize], sent, expected: &[usize]| {
            let messages: Vec<Arc<Message>> = sizes.iter().map(|&blocks| Arc::new(message(blocks))).collect();
            let mut places = vec![Breakpoint::Prefix];
            places.extend(expected.iter().map(|&index| Breakpoint::Message(index)));
            assert_eq!(breakpoints(&messages, sent), places);
        };
        check(&[], 0, &[]);
        check(&[1], 0, &[0]);
        check(&[1, 1, 1], 1, &[0, 2]);
        check(&[1, 1, 30], 1, &[0, 1, 2]);
        check(&[1, 1, 1], 3, &[2]);
    }
}
