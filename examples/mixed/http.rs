//! The format of requests and answers: HTTP/1.1 and 1.0, without any I/O.
//!
//! A request is its head and, if `Content-Length` says so, a body of bounded length. Bodies in
//! chunks are refused (501), as are heads and bodies that are too large (431, 413), versions that
//! this server does not support (505) and other malformed requests (400). After a refusal the start
//! of the next request is unknown, so the connection ends.

use std::time::{SystemTime, UNIX_EPOCH};

/// Most bytes and lines of a head, and most bytes of a body.
pub(crate) const MOST_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
const MOST_BODY: u64 = 64 * 1024;

/// The parts of a request that the server needs.
pub(crate) struct Request {
    pub(crate) method: Method,
    /// Path without a query.
    pub(crate) path: String,
    /// Bytes of its head, and of its body.
    pub(crate) head: usize,
    pub(crate) body: usize,
    /// The client waits for `100 Continue` before it sends its body.
    pub(crate) expects_continue: bool,
    /// Another request may follow.
    pub(crate) keep_alive: bool,
    /// The client speaks HTTP/1.0, and assumes the connection ends.
    pub(crate) is_old: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Other,
}

/// A status, and the answer's text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u16, pub(crate) &'static str);

pub(crate) const OK: Status = Status(200, "OK");
pub(crate) const BAD_REQUEST: Status = Status(400, "Bad Request");
pub(crate) const NOT_FOUND: Status = Status(404, "Not Found");
pub(crate) const NOT_ALLOWED: Status = Status(405, "Method Not Allowed");
pub(crate) const TIMEOUT: Status = Status(408, "Request Timeout");
pub(crate) const BODY_TOO_LARGE: Status = Status(413, "Content Too Large");
pub(crate) const HEAD_TOO_LARGE: Status = Status(431, "Request Header Fields Too Large");
pub(crate) const NOT_IMPLEMENTED: Status = Status(501, "Not Implemented");
pub(crate) const BAD_VERSION: Status = Status(505, "HTTP Version Not Supported");

/// Parses the beginning of the bytes received so far.
///
/// They begin with a whole head, with the beginning of one (`None`), or with a request to refuse
/// (an error).
pub(crate) fn parse(input: &[u8]) -> Result<Option<Request>, Status> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(input) {
        Ok(httparse::Status::Complete(length)) if length <= MOST_HEAD => length,
        Ok(httparse::Status::Partial) if input.len() < MOST_HEAD => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(HEAD_TOO_LARGE),
        Err(httparse::Error::Version) => return Err(BAD_VERSION),
        Err(_) => return Err(BAD_REQUEST),
    };
    let is_old = request.version == Some(0);
    let headers = &*request.headers;
    check_host(headers, is_old)?;
    Ok(Some(Request {
        method: match request.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            _ => Method::Other,
        },
        path: path(request.path.unwrap_or_default()).to_owned(),
        head,
        body: body_length(headers)?,
        expects_continue: !is_old && has_word(headers, "expect", "100-continue"),
        keep_alive: match is_old {
            true => has_word(headers, "connection", "keep-alive"),
            false => !has_word(headers, "connection", "close"),
        },
        is_old,
    }))
}

fn values<'a>(
    headers: &'a [httparse::Header<'_>],
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> {
    let named = move |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case(name);
    headers.iter().filter(named).map(|header| header.value)
}

/// Returns true if a header that is a list has this among its words.
fn has_word(headers: &[httparse::Header<'_>], name: &str, word: &str) -> bool {
    values(headers, name)
        .flat_map(|value| value.split(|byte| *byte == b','))
        .any(|item| item.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
}

/// Checks the `Host` header; HTTP/1.1 requires exactly one.
fn check_host(headers: &[httparse::Header<'_>], is_old: bool) -> Result<(), Status> {
    match values(headers, "host").count() {
        1 => Ok(()),
        0 if is_old => Ok(()),
        _ => Err(BAD_REQUEST),
    }
}

fn body_length(headers: &[httparse::Header<'_>]) -> Result<usize, Status> {
    let mut lengths = values(headers, "content-length");
    let length = lengths.next();
    if values(headers, "transfer-encoding").next().is_some() {
        // With both, a proxy in between may have read the request in another way.
        return Err(length.map_or(NOT_IMPLEMENTED, |_| BAD_REQUEST));
    }
    let Some(length) = length else { return Ok(0) };
    if lengths.any(|other| other != length) {
        return Err(BAD_REQUEST);
    }
    let is_number = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
    let digits = std::str::from_utf8(length).ok().filter(|_| is_number);
    match digits.ok_or(BAD_REQUEST)?.parse::<u64>() {
        Ok(length) if length <= MOST_BODY => Ok(length as usize),
        _ => Err(BODY_TOO_LARGE), // more digits than a number has as well
    }
}

/// Returns a target's path on this server; it may name the server (`http://host/path`).
fn path(target: &str) -> &str {
    let local = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    local.split('?').next().unwrap_or(local)
}

/// Appends an answer. For a `HEAD` request the length of the body is sent, but not the body.
pub(crate) fn write_answer(
    output: &mut Vec<u8>,
    status: Status,
    body: &str,
    connection: Option<&str>,
    is_head: bool,
) {
    let Status(code, reason) = status;
    let length = body.len();
    let date = date(SystemTime::now());
    let mut head = format!(
        "HTTP/1.1 {code} {reason}\r\nDate: {date}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n"
    );
    if status == NOT_ALLOWED {
        head.push_str("Allow: GET, HEAD\r\n");
    }
    if let Some(word) = connection {
        head.extend(["Connection: ", word, "\r\n"]);
    }
    head.push_str("\r\n");
    output.extend_from_slice(head.as_bytes());
    if !is_head {
        output.extend_from_slice(body.as_bytes());
    }
}

/// Formats a date as in `Sun, 06 Nov 1994 08:49:37 GMT`.
fn date(now: SystemTime) -> String {
    // 1 January 1970 was the first of these.
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb",
    ];
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);

    // Years here begin in March, so that the leap day is the last one of a year; the first is 1600.
    // Each step takes off whole periods, of which the last may be a day longer than the rest.
    let since_1600 = days + 135_080;
    let (centuries_4, rest) = (since_1600 / 146_097, since_1600 % 146_097);
    let century = (rest / 36_524).min(3);
    let rest = rest - century * 36_524;
    let (years_4, rest) = (rest / 1_461, rest % 1_461);
    let year = (rest / 365).min(3);
    let of_year = rest - year * 365;
    // Five months have 153 days: 31, 30, 31, 30, 31, and so on.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let year = 1600 + 400 * centuries_4 + 100 * century + 4 * years_4 + year + month / 10;

    let (weekday, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize]);
    format!("{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT")
}
