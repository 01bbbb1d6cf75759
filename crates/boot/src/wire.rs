//! The text of PMI-1: lines of `name=value` fields that begin with `cmd=`, and how bytes travel in them.
//!
//! Guaranteed: pure functions of their input; whatever comes in, they return, with a value or a one-line error, and
//! hold no more memory than a small multiple of what came in. Not contained: sockets, and what the commands mean.

use crate::Error;

/// The longest line that either side accepts, without its newline.
pub(crate) const LINE_MAX: usize = 1 << 20;

/// The largest blob of one exchange.
pub(crate) const BLOB_MAX: usize = 256 << 20;

/// What is said of a blob that is larger.
pub(crate) fn too_long(blob: &[u8]) -> Error {
    Error::new(format!("{} bytes are too many for one exchange; {BLOB_MAX} are allowed", blob.len()))
}

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    /// Where the next line begins, and how far it is known to have no end.
    begin: usize,
    searched: usize,
}

impl Lines {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.begin);
        self.searched -= self.begin;
        self.begin = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete line, without its newline.
    pub(crate) fn next(&mut self) -> Result<Option<String>, Error> {
        let end = self.bytes[self.searched..].iter().position(|b| *b == b'\n').map(|at| self.searched + at);
        let line = &self.bytes[self.begin..end.unwrap_or(self.bytes.len())];
        if line.len() > LINE_MAX {
            return Err(Error::new(format!("a line of more than {LINE_MAX} bytes that begins {}", shown(line))));
        }
        match end {
            None => {
                self.searched = self.bytes.len();
                Ok(None)
            }
            Some(end) => {
                let line = std::str::from_utf8(line).map(str::to_owned);
                let line = line.map_err(|_| Error::new(format!("not text: {}", shown(&self.bytes[self.begin..end]))));
                (self.begin, self.searched) = (end + 1, end + 1);
                line.map(Some)
            }
        }
    }
}

/// One line, taken apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    line: &'a str,
    command: &'a str,
}

impl<'a> Message<'a> {
    pub(crate) fn parse(line: &'a str) -> Result<Message<'a>, Error> {
        let first = line.split_ascii_whitespace().next().unwrap_or("");
        match first.strip_prefix("cmd=") {
            Some(command) if !command.is_empty() => Ok(Message { line, command }),
            _ => Err(Error::new(format!("not a PMI command: {}", shown(line.as_bytes())))),
        }
    }

    pub(crate) fn command(&self) -> &'a str {
        self.command
    }

    /// The first field of that name.
    pub(crate) fn field(&self, name: &str) -> Option<&'a str> {
        self.line.split_ascii_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    }

    pub(crate) fn need(&self, name: &str) -> Result<&'a str, Error> {
        self.field(name).ok_or_else(|| Error::new(format!("no `{name}` in {}", shown(self.line.as_bytes()))))
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, Error> {
        let bad = |_| Error::new(format!("`{name}` is no such number in {}", shown(self.line.as_bytes())));
        self.need(name)?.parse().map_err(bad)
    }

    /// This message as an answer of the kind `command`: its `rc`, where it has one, must be 0.
    pub(crate) fn expect(self, command: &str) -> Result<Message<'a>, Error> {
        if self.command != command || self.field("rc").is_some_and(|rc| rc != "0") {
            return Err(Error::new(format!("wanted `{command}`, got {}", shown(self.line.as_bytes()))));
        }
        Ok(self)
    }
}

/// A quotation for an error line: escaped and cut.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const SHOWN: usize = 80;
    let text = bytes[..bytes.len().min(SHOWN)].escape_ascii().to_string();
    if bytes.len() > SHOWN || text.len() > SHOWN {
        return format!("\"{}...\"", &text[..SHOWN]);
    }
    format!("\"{text}\"")
}

/// A blob as text that may be cut anywhere: its length in bytes, a dot, its bytes in base 64 (the digits that may
/// stand in names of files, no padding). [`Blob`] reads it.
pub(crate) fn blob_text(bytes: &[u8]) -> String {
    let mut text = format!("{}.", bytes.len());
    text.reserve(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        text.extend((0..=three.len()).map(|digit| char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize])));
    }
    text
}

/// Whether a text may be a part of what [`blob_text`] gives.
pub(crate) fn is_of_blob(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b == b'.' || value_of(b).is_some())
}

/// A blob on its way in, chunk by chunk.
#[derive(Debug)]
pub(crate) struct Blob {
    length: usize,
    bytes: Vec<u8>,
    /// Bits that are no byte yet: how many, and which.
    rest: (u32, u32),
}

impl Blob {
    pub(crate) fn begin(first: &str) -> Result<Blob, Error> {
        let bad = || Error::new(format!("not the beginning of a blob: {}", shown(first.as_bytes())));
        let (length, rest) = first.split_once('.').ok_or_else(bad)?;
        let length = length.parse().map_err(|_| bad())?;
        let mut blob = Blob { length, bytes: Vec::new(), rest: (0, 0) };
        blob.take(rest)?;
        Ok(blob)
    }

    /// A whole one.
    pub(crate) fn read(text: &str) -> Result<Vec<u8>, Error> {
        let blob = Blob::begin(text)?;
        match blob.complete() {
            true => Ok(blob.bytes),
            false => Err(blob.too_short()),
        }
    }

    pub(crate) fn complete(&self) -> bool {
        self.bytes.len() == self.length
    }

    /// A further chunk; an empty one is an error, so that reading chunks until the blob is complete comes to an end.
    pub(crate) fn add(&mut self, chunk: &str) -> Result<(), Error> {
        if chunk.is_empty() {
            return Err(self.too_short());
        }
        self.take(chunk)
    }

    /// The bytes of a [complete](Blob::complete) blob.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn too_short(&self) -> Error {
        Error::new(format!("a blob of {} bytes ends after {}", self.length, self.bytes.len()))
    }

    fn take(&mut self, chunk: &str) -> Result<(), Error> {
        for &digit in chunk.as_bytes() {
            let value =
                value_of(digit).ok_or_else(|| Error::new(format!("not base 64: {}", shown(chunk.as_bytes()))))?;
            if self.complete() {
                return Err(Error::new(format!("a blob of {} bytes is longer than it says", self.length)));
            }
            let (count, bits) = (self.rest.0 + 6, self.rest.1 << 6 | value);
            self.rest = match count.checked_sub(8) {
                None => (count, bits),
                Some(left) => {
                    self.bytes.push((bits >> left) as u8);
                    (left, bits & ((1 << left) - 1))
                }
            };
        }
        Ok(())
    }
}

/// Several blobs in one: each with its length (4 bytes, little-endian) before it. [`split`] reads it.
pub(crate) fn join(blobs: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(blobs.iter().map(|blob| 4 + blob.len()).sum());
    for blob in blobs {
        bytes.extend_from_slice(&(blob.len() as u32).to_le_bytes());
        bytes.extend_from_slice(blob);
    }
    bytes
}

pub(crate) fn split(mut bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let mut blobs = Vec::new();
    while !bytes.is_empty() {
        let early = || Error::new("a list of blobs ends too early");
        let (length, rest) = bytes.split_first_chunk().ok_or_else(early)?;
        let (blob, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(early)?;
        blobs.push(blob.to_vec());
        bytes = rest;
    }
    Ok(blobs)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    digits.map(char::from).collect()
}

pub(crate) fn unhex(text: &str) -> Result<Vec<u8>, Error> {
    let digits = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(nibble(*high)? << 4 | nibble(*low)?),
        _ => None,
    });
    digits.collect::<Option<_>>().ok_or_else(|| Error::new(format!("not hex: {}", shown(text.as_bytes()))))
}

/// Whether `key` can stand in a field: letters, digits, `-`, `_`, `.`, at most `max` of them.
pub(crate) fn is_key(key: &str, max: usize) -> bool {
    (1..=max).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Of a digit in base 64.
fn value_of(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    };
    Some(value.into())
}

fn nibble(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|n| n as u8)
}

/// A small deterministic source of numbers for the tests that mutate input.
#[cfg(test)]
pub(crate) struct Xorshift(pub(crate) u64);

#[cfg(test)]
impl Xorshift {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    /// Changes, doubles, drops or cuts a few bytes.
    pub(crate) fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(5) {
                0 => bytes.insert(at, self.below(256) as u8),
                1 if at < bytes.len() => bytes[at] = b" =\n0-.\0\xff"[self.below(8)],
                2 if at < bytes.len() => drop(bytes.remove(at)),
                3 => bytes.truncate(at),
                _ => bytes.extend_from_within(at..),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let message = Message::parse("cmd=get_result rc=0 msg=success value=12.3=4").unwrap();
        assert_eq!(message.command(), "get_result");
        assert_eq!(message.field("value"), Some("12.3=4"));
        assert_eq!(message.number::<i32>("rc").unwrap(), 0);
        assert_eq!(message.field("val"), None);
        assert_eq!(
            message.need("pid").unwrap_err().to_string(),
            format!("no `pid` in {}", shown(message.line.as_bytes()))
        );
        assert!(message.number::<u32>("msg").is_err());
        assert!(message.expect("get_result").is_ok());
        assert!(message.expect("put_result").is_err());
        assert!(Message::parse("cmd=put_result rc=-1").unwrap().expect("put_result").is_err());
        for line in ["", " ", "cmd", "cmd=", "rc=0 cmd=put_result", "\0"] {
            assert!(Message::parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn lines_arrive_in_pieces() {
        let mut lines = Lines::default();
        lines.push(b"cmd=a\ncmd");
        assert_eq!(lines.next().unwrap().as_deref(), Some("cmd=a"));
        assert_eq!(lines.next().unwrap(), None);
        lines.push(b"=b\n\n");
        assert_eq!(lines.next().unwrap().as_deref(), Some("cmd=b"));
        assert_eq!(lines.next().unwrap().as_deref(), Some(""));
        assert_eq!(lines.next().unwrap(), None);
        lines.push(b"\xff\n");
        assert!(lines.next().is_err());
        lines.push(&vec![b'x'; LINE_MAX]);
        assert_eq!(lines.next().unwrap(), None);
        lines.push(b"x");
        assert!(lines.next().unwrap_err().to_string().len() < 200);
    }

    #[test]
    fn blobs_of_any_size_in_chunks_of_any_size() {
        let mut random = Xorshift(1);
        for length in [0, 1, 2, 15, 16, 17, 255, 4096] {
            let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            assert_eq!(unhex(&hex(&bytes)).unwrap(), bytes);
            let text = blob_text(&bytes);
            assert!(is_of_blob(&text) && Blob::read(&text).unwrap() == bytes);
            for chunk in [8, 9, 63, 1023, 65536] {
                let mut chunks = text.as_bytes().chunks(chunk).map(|c| std::str::from_utf8(c).unwrap());
                let mut blob = Blob::begin(chunks.next().unwrap()).unwrap();
                while !blob.complete() {
                    blob.add(chunks.next().unwrap()).unwrap();
                }
                assert_eq!(chunks.next(), None);
                assert_eq!(blob.into_bytes(), bytes);
            }
        }
    }

    #[test]
    fn the_digits_are_those_of_others() {
        assert_eq!(blob_text(b"\xfb\xff\xbfab"), "5.-_-_YWI");
    }

    #[test]
    fn bad_blobs() {
        for text in ["", "5", ".", "-1.", "x.AA", "1.AAA", "0.A", "2.A A", "2.A=", "99999999999999999999."] {
            assert!(Blob::begin(text).is_err(), "{text}");
        }
        let mut blob = Blob::begin("2.A").unwrap();
        assert!(!blob.complete());
        assert!(blob.add("").is_err());
        assert!(blob.add("AAAAA").is_err());
        assert!(Blob::read("2.A").is_err());
        assert!(unhex("0").is_err() && unhex("0g").is_err());
        assert!(!is_of_blob("") && !is_of_blob("2.A,") && !is_of_blob("ü"));
    }

    #[test]
    fn lists_of_blobs() {
        for blobs in [vec![], vec![vec![]], vec![vec![1, 2, 3], vec![], vec![4; 300]]] {
            assert_eq!(split(&join(&blobs)).unwrap(), blobs);
        }
        let whole = join(&[vec![1, 2, 3], vec![]]);
        for end in [1, 3, 5, 6, 8, 10] {
            assert!(split(&whole[..end]).is_err(), "{end}");
        }
        assert!(split(&[255; 8]).is_err());
    }

    #[test]
    fn mutated_text_never_panics() {
        let seeds = [
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 partage=2 rc=0\n",
            "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n",
            "cmd=get_result rc=0 msg=success value=4.AP8QoA\n",
            "cmd=abort exitcode=-3 line=00ff\ncmd=barrier_in\n",
        ];
        let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
        for round in 0..40_000 {
            let mut bytes = seeds[round % seeds.len()].as_bytes().to_vec();
            random.mutate(&mut bytes);
            let mut lines = Lines::default();
            let cut = random.below(bytes.len() + 1);
            for part in [&bytes[..cut], &bytes[cut..]] {
                lines.push(part);
                while let Some(found) = lines.next().transpose() {
                    let Ok(line) = found else { continue };
                    let Ok(message) = Message::parse(&line) else { continue };
                    let _ = (
                        message.number::<i32>("exitcode"),
                        message.number::<usize>("vallen_max"),
                        message.expect("maxes").is_ok(),
                    );
                    if let Some(value) = message.field("value").or(message.field("line")) {
                        let _ = unhex(value);
                        if let Ok(mut blob) = Blob::begin(value) {
                            let _ = blob.add(value);
                            assert!(blob.bytes.len() <= 2 * value.len());
                            let _ = split(&blob.into_bytes());
                        }
                    }
                }
            }
        }
    }
}
