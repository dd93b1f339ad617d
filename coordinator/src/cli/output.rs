//! The two output streams. Everything the shell writes goes through here, so that a stream without colour
//! gets no control byte, and a reader that went away ends a command in silence.

use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};

/// Done.
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
/// Look here.
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
/// Failed.
pub(crate) const RED: Style = AnsiColor::Red.on_default();
/// Ids.
pub(crate) const CYAN: Style = AnsiColor::Cyan.on_default();
/// The rest.
pub(crate) const DIM: Style = Style::new().dimmed();
/// What a table is about.
pub(crate) const BOLD: Style = Style::new().bold();

/// A text in a style; the style is closed again.
pub(crate) fn paint(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{style}{text}{style:#}") }
}

/// One output stream.
pub(crate) struct Stream {
    writer: Box<dyn Write + Send + Sync>,
    colour: bool,
    /// Whether it is a terminal.
    pub(crate) is_terminal: bool,
    /// Whether a reader that went away is no error here (`run` and `attach` end by the verdict).
    pub(crate) tolerant: bool,
    broken: bool,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("colour", &self.colour).finish_non_exhaustive()
    }
}

/// When there is colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colour {
    /// NO_COLOR, CLICOLOR_FORCE, CLICOLOR, then whether it is a terminal.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Colour {
    fn decide<S: anstream::stream::RawStream>(self, stream: &S) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => !matches!(anstream::AutoStream::choice(stream), anstream::ColorChoice::Never),
        }
    }
}

impl Stream {
    /// Standard output.
    pub(crate) fn stdout(colour: Colour) -> Self {
        let stdout = io::stdout();
        Self {
            colour: colour.decide(&stdout),
            is_terminal: stdout.is_terminal(),
            writer: Box::new(stdout),
            tolerant: false,
            broken: false,
        }
    }

    /// Standard error. Nobody fails because it is gone.
    pub(crate) fn stderr(colour: Colour) -> Self {
        let stderr = io::stderr();
        Self {
            colour: colour.decide(&stderr),
            is_terminal: stderr.is_terminal(),
            writer: Box::new(stderr),
            tolerant: true,
            broken: false,
        }
    }

    /// Any writer.
    pub(crate) fn of(writer: Box<dyn Write + Send + Sync>, colour: bool, is_terminal: bool) -> Self {
        Self { writer, colour, is_terminal, tolerant: false, broken: false }
    }

    /// Writes styled text and hands it on at once.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        if self.colour {
            self.bytes(text.as_bytes())
        } else {
            self.bytes(anstream::adapter::strip_str(text).to_string().as_bytes())
        }
    }

    /// Writes bytes as they are (a patch, a frame) and hands them on at once.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.broken {
            return Ok(());
        }
        match self.writer.write_all(bytes).and_then(|()| self.writer.flush()) {
            Err(_) if self.tolerant => {
                self.broken = true;
                Ok(())
            }
            other => other,
        }
    }

    /// Writes styled text and a line break.
    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        self.text(&format!("{text}\n"))
    }

    /// Whether styles reach the reader.
    pub(crate) const fn has_colour(&self) -> bool {
        self.colour
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A writer whose bytes a test can read while the command holds it.

    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Debug, Default)]
    pub(crate) struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Captured {
        pub(crate) fn stream(&self) -> Stream {
            Stream::of(Box::new(self.clone()), false, false)
        }

        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A reader that went away.
    #[derive(Debug)]
    pub(crate) struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::*, *};

    #[test]
    fn without_colour_no_control_byte_is_written() {
        let captured = Captured::default();
        captured.stream().line(&paint(RED, "failed")).unwrap();
        assert_eq!(captured.text(), "failed\n");
    }

    #[test]
    fn a_tolerant_stream_outlives_its_reader() {
        let mut stream = Stream::of(Box::new(Gone), false, false);
        assert_eq!(stream.line("x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        stream.tolerant = true;
        stream.line("x").unwrap();
        stream.line("y").unwrap();
    }
}
