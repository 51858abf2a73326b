//! Just enough of a server for one page: files, and what the page sends back.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// More than any answer of the page is long.
const LONGEST: u64 = 1 << 20;

/// What the page sent.
#[derive(Default)]
pub(super) struct Answer {
    /// The payload, in hexadecimal digits.
    pub(super) bytes: String,
    /// What was compared.
    pub(super) said: String,
}

/// Serves the files of a folder until the page has answered.
pub(super) fn until_answered(
    listener: &TcpListener,
    page: &Path,
    patience: Option<Duration>,
) -> Result<Answer, String> {
    let start = Instant::now();
    let mut answer = Answer::default();
    listener.set_nonblocking(patience.is_some()).map_err(|e| format!("the port broke: {e}"))?;
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if patience.is_some_and(|patience| start.elapsed() > patience) {
                    return Err(format!("the page has not answered within {} s", start.elapsed().as_secs()));
                }
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            Err(e) => return Err(format!("the port broke: {e}")),
        };
        // A browser opens connections that it then does not use; they end by themselves, and are not the page's answer.
        let Ok((path, body)) = request(&stream, page) else { continue };
        match path.as_str() {
            "/bytes" => answer.bytes = body,
            "/failed" => return Err(format!("the page failed: {}", body.trim())),
            "/said" => {
                answer.said = body;
                return Ok(answer);
            }
            _ => {}
        }
    }
}

/// Answers one request: its path, and what was sent with it.
fn request(mut stream: &TcpStream, page: &Path) -> std::io::Result<(String, String)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse::<u64>().unwrap_or(0).min(LONGEST);
        }
    }
    let mut body = String::new();
    reader.take(length).read_to_string(&mut body)?;
    // The page's own files lie side by side, so that a name with a folder in it is none of theirs.
    let name = path.trim_start_matches('/');
    let file =
        if line.starts_with("GET ") && !name.contains(['/', '\\']) { fs::read(page.join(name)).ok() } else { None };
    let (status, file) = match file {
        Some(file) => ("200 OK", file),
        None if line.starts_with("POST ") => ("204 No Content", Vec::new()),
        None => ("404 Not Found", Vec::new()),
    };
    let kind = match name.rsplit('.').next() {
        Some("html") => "text/html",
        Some("js") => "text/javascript",
        Some("wasm") => "application/wasm",
        _ => "application/octet-stream",
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n", file.len())?;
    write!(stream, "Connection: close\r\n\r\n")?;
    stream.write_all(&file)?;
    Ok((path, body))
}
