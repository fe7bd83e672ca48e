//! Whole lines at the end of a file, whatever happened to the line before.

use std::fs::File;
use std::io::{self, Write};

/// What can be written at its end and be cut there again.
pub(super) trait Tail: Write {
    /// How many bytes there are.
    fn len(&self) -> io::Result<u64>;
    /// Takes away all but the first `len` bytes.
    fn cut(&mut self, len: u64) -> io::Result<()>;
}

impl Tail for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }
}

/// Appends lines, each in one write.
pub(super) struct LineAppender<W> {
    out: W,
    /// Whether what is out so far may end in the middle of a line.
    mid_line: bool,
}

impl<W: Tail> LineAppender<W> {
    pub(super) fn new(out: W, mid_line: bool) -> Self {
        Self { out, mid_line }
    }

    /// Appends one line, on a line of its own even if an earlier one was only half written.
    ///
    /// What a write that fails half-way (a full disk) has left of its line is taken away again.
    /// Where even that fails, the next line starts with a newline.
    pub(super) fn append(&mut self, line: &str) -> io::Result<()> {
        let start = if self.mid_line { "\n" } else { "" };
        let before = self.out.len()?;
        let written = self
            .out
            .write_all(format!("{start}{line}\n").as_bytes())
            .and_then(|()| self.out.flush());
        match written {
            Ok(()) => self.mid_line = false,
            Err(_) => self.mid_line |= self.out.cut(before).is_err(),
        }
        written
    }

    /// Takes away all but the first `len` bytes, which end a line or, if `mid_line`, do not.
    pub(super) fn cut(&mut self, len: u64, mid_line: bool) -> io::Result<()> {
        self.out.cut(len)?;
        self.mid_line = mid_line;
        Ok(())
    }

    pub(super) fn get_mut(&mut self) -> &mut W {
        &mut self.out
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
        can_be_cut: bool,
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

    impl Tail for &mut Disk {
        fn len(&self) -> io::Result<u64> {
            Ok(self.content.len() as u64)
        }

        fn cut(&mut self, len: u64) -> io::Result<()> {
            if !self.can_be_cut {
                return Err(io::ErrorKind::ReadOnlyFilesystem.into());
            }
            self.content.truncate(len as usize);
            Ok(())
        }
    }

    fn disk(room: usize, can_be_cut: bool) -> Disk {
        Disk {
            content: Vec::new(),
            room,
            writes: 0,
            can_be_cut,
        }
    }

    #[test]
    fn each_line_is_one_write() {
        let mut disk = disk(100, true);
        let mut lines = LineAppender::new(&mut disk, false);
        lines.append("one").unwrap();
        lines.append("two").unwrap();
        assert_eq!(disk.content, b"one\ntwo\n");
        assert_eq!(disk.writes, 2);
    }

    #[test]
    fn a_line_after_a_half_written_one_is_a_line_of_its_own() {
        let mut disk = disk(6, false);
        let mut lines = LineAppender::new(&mut disk, false);
        lines.append("one").unwrap();
        let error = lines.append("second").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        lines.out.room = 100;
        lines.append("three").unwrap();
        lines.append("four").unwrap();
        assert_eq!(disk.content, b"one\nse\nthree\nfour\n");
    }

    #[test]
    fn what_a_full_disk_took_of_a_line_is_taken_away_again() {
        let mut disk = disk(6, true);
        let mut lines = LineAppender::new(&mut disk, false);
        lines.append("one").unwrap();
        for _ in 0..2 {
            let error = lines.append("second").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            assert_eq!(lines.out.content, b"one\n");
        }
        lines.out.room = 100;
        lines.append("second").unwrap();
        assert_eq!(disk.content, b"one\nsecond\n");
    }
}
