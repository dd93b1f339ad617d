//! A descriptor with a few words, over a unix socket.

use super::raw;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

/// The longest message.
const MAX_BYTES: usize = 4 * 1024;

/// Sends `text`, which must not be empty, and with it a descriptor.
pub(super) fn send(stream: &UnixStream, text: &[u8], descriptor: Option<&OwnedFd>) -> io::Result<()> {
    let text = &text[..text.len().min(MAX_BYTES)];
    let numbers: Vec<i32> = descriptor.iter().map(|descriptor| descriptor.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control = if numbers.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(text)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// What was sent; no text at all when the other end has gone.
pub(crate) fn receive(stream: impl AsFd) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut text = vec![0; MAX_BYTES];
    let mut control = nix::cmsg_space!([i32; 1]);
    let mut into = [IoSliceMut::new(&mut text)];
    let message =
        recvmsg::<()>(stream.as_fd().as_raw_fd(), &mut into, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let length = message.bytes;
    let mut descriptors = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = part {
            descriptors.extend(numbers.into_iter().map(raw::received));
        }
    }
    text.truncate(length);
    Ok((text, descriptors.into_iter().next()))
}
