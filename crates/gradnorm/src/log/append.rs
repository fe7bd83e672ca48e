//! Whole lines at the end of a file, whatever happened to the line before.

use std::io::{self, Write};

/// Appends lines, each in one write.
pub(super) struct LineAppender<W> {
    out: W,
    /// Whether what is out so far may end in the middle of a line.
    mid_line: bool,
}

impl<W: Write> LineAppender<W> {
    pub(super) fn new(out: W, mid_line: bool) -> Self {
        Self { out, mid_line }
    }

    /// Appends one line, on a line of its own even if an earlier one was only half written.
    pub(super) fn append(&mut self, line: &str) -> io::Result<()> {
        let start = if self.mid_line { "\n" } else { "" };
        // True until the last byte is out: a write that fails half-way (a full disk) stays so.
        self.mid_line = true;
        self.out.write_all(format!("{start}{line}\n").as_bytes())?;
        self.out.flush()?;
        self.mid_line = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `room` bytes, then is full until room is made.
    struct Disk {
        content: Vec<u8>,
        room: usize,
        writes: usize,
    }

    impl Write for &mut Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let taken = bytes.len().min(self.room);
            self.content.extend_from_slice(&bytes[..taken]);
            self.room -= taken;
            self.writes += 1;
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn disk(room: usize) -> Disk {
        Disk {
            content: Vec::new(),
            room,
            writes: 0,
        }
    }

    #[test]
    fn each_line_is_one_write() {
        let mut disk = disk(100);
        let mut lines = LineAppender::new(&mut disk, false);
        lines.append("one").unwrap();
        lines.append("two").unwrap();
        assert_eq!(disk.content, b"one\ntwo\n");
        assert_eq!(disk.writes, 2);
    }

    #[test]
    fn a_line_after_a_half_written_one_is_a_line_of_its_own() {
        let mut disk = disk(6);
        let mut lines = LineAppender::new(&mut disk, false);
        lines.append("one").unwrap();
        let error = lines.append("second").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        lines.out.room = 100;
        lines.append("three").unwrap();
        lines.append("four").unwrap();
        assert_eq!(disk.content, b"one\nse\nthree\nfour\n");
    }
}
