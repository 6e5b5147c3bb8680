//! Reads request heads and writes answers: as much of HTTP/1.1 as the service needs.

use std::io::{self, BufRead, ErrorKind, Read, Write};

/// Most bytes of a head, and of a body.
const MOST_HEAD: u64 = 16 * 1024;
const MOST_BODY: usize = 64 * 1024;
const MOST_HEADERS: usize = 32;

/// The head of a request.
pub(crate) struct Head {
    /// The last part of the path.
    pub(crate) id: u64,
    /// Bytes of the body.
    pub(crate) length: usize,
}

/// Waits for the head of the next request. Returns `None` if the client has closed the connection.
pub(crate) fn read_head(input: &mut impl BufRead) -> io::Result<Option<Head>> {
    let mut bytes = Vec::new();
    let mut limited = input.take(MOST_HEAD);
    while !bytes.ends_with(b"\r\n\r\n") {
        if limited.read_until(b'\n', &mut bytes)? == 0 {
            return match bytes.is_empty() {
                true => Ok(None),
                false => Err(invalid("a head that does not end")),
            };
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(&bytes).map_err(invalid)?;
    if parsed.is_partial() || request.method != Some("POST") {
        return Err(invalid("not a whole POST request"));
    }
    let id = request
        .path
        .and_then(|path| path.strip_prefix("/words/")?.parse().ok());
    let length = request
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))
        .and_then(|header| str::from_utf8(header.value).ok()?.parse().ok())
        .filter(|length| *length <= MOST_BODY);
    Ok(Some(Head {
        id: id.ok_or_else(|| invalid("no /words/NUMBER"))?,
        length: length.ok_or_else(|| invalid("no usable content-length"))?,
    }))
}

/// Writes an answer with one call, so that the client gets it as a whole.
pub(crate) fn write_answer(mut output: impl Write, body: &str) -> io::Result<()> {
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    output.write_all(answer.as_bytes())
}

fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}
