//! `entrain host --metrics`: the status for Prometheus, over HTTP.
//!
//! A process of its own serves it (`part`); each scrape asks the main loop for the status that the status socket
//! serves, so that both say the same. A client can make the daemon neither wait nor grow: four at a time, each for ten
//! seconds at most, one request a connection.

pub(crate) mod part;
mod scheduler;
mod text;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::debug;

use crate::status::Asker;

/// Clients at a time.
const CLIENTS: usize = 4;
/// How long one may take, for all of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// A request is a line and a few headers; more is refused. hyper takes no less than 8 KiB.
const REQUEST: usize = 16 << 10;

/// Parses `ADDR:PORT`, `[ADDR]:PORT`, or a port alone, which is one of this machine only.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().map_err(|_| {
        "give ADDR:PORT (127.0.0.1:9780, [::1]:9780) or PORT, for 127.0.0.1; port 0 is any that is free".to_owned()
    })
}

/// What a scrape of this status gets, in the classic format.
pub(crate) fn classic(status: &crate::status::Status) -> Option<String> {
    text::openmetrics(status, false).ok().map(|text| text::classic(&text))
}

async fn accept(listener: std::net::TcpListener, asker: Arc<Asker>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Out of descriptors, or the client has gone already: try again, but not in a tight loop.
            Err(error) => {
                debug!("cannot take a client of the metrics: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let asker = asker.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let asker = asker.clone();
                async move { Ok::<_, Infallible>(respond(&request, &asker)) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .keep_alive(false)
                .max_buf_size(REQUEST)
                .serve_connection(TokioIo::new(stream), service);
            if let Ok(Err(error)) = timeout(PATIENCE, connection).await {
                debug!("a client of the metrics went away: {error}");
            }
            drop(place);
        });
    }
}

fn respond(request: &Request<Incoming>, asker: &Asker) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {}
        (&Method::GET | &Method::HEAD, "/healthz") => return health(asker),
        (&Method::GET | &Method::HEAD, _) => {
            return plain(StatusCode::NOT_FOUND, "metrics are at /metrics, the daemon's health at /healthz\n");
        }
        _ => return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"),
    }
    // At most two seconds, in which other clients wait: the main loop answers within a tick.
    let Some(status) = asker.scrape() else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending or busy\n");
    };
    let open = request
        .headers()
        .get_all(ACCEPT)
        .iter()
        .any(|accept| accept.to_str().is_ok_and(|accept| accept.contains("application/openmetrics-text")));
    let (kind, body) = match text::openmetrics(&status, status.bpf_stats) {
        Err(error) => return plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
        Ok(body) if open => ("application/openmetrics-text; version=1.0.0; charset=utf-8", body),
        Ok(body) => ("text/plain; version=0.0.4; charset=utf-8", text::classic(&body)),
    };
    let mut response = Response::new(Full::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Whether the main loop answers. Falling back to observing is no illness: a restart would not cure it.
fn health(asker: &Asker) -> Response<Full<Bytes>> {
    match asker.status() {
        None => plain(StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending or busy\n"),
        Some(status) => match status.fallback {
            None => plain(StatusCode::OK, "ok\n"),
            Some(fallback) => plain(StatusCode::OK, &format!("ok, but only observing: {}\n", fallback.why)),
        },
    }
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text.to_owned()));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use crossbeam_channel::bounded;

    use super::*;
    use crate::status::{Answer, Question};

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut client = TcpStream::connect(address).expect("listens");
        client.write_all(request.as_bytes()).expect("takes it");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("answers");
        answer
    }

    /// In a thread, without the process around it.
    fn serve(asker: Asker) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(accept(listener, Arc::new(asker)))
        });
        address
    }

    #[test]
    fn a_port_alone_is_of_this_machine() {
        let of = |text| parse_address(text).map(|address| address.to_string());
        assert_eq!(of("9780").as_deref(), Ok("127.0.0.1:9780"));
        assert_eq!(of(":9780").as_deref(), Ok("127.0.0.1:9780"));
        assert_eq!(of("[::1]:9").as_deref(), Ok("[::1]:9"));
        assert_eq!(of("0.0.0.0:9").as_deref(), Ok("0.0.0.0:9"));
        assert!(of("localhost").is_err() && of("70000").is_err());
    }

    #[test]
    fn scrapes_get_the_status_and_nothing_else_is_served() {
        let (requests, receiver) = bounded::<Question>(1);
        let asker = Asker::new(move |question| requests.send(question).is_ok());
        let address = serve(asker);
        let main_loop = std::thread::spawn(move || {
            for metrics in [true, true, false] {
                let status = crate::status::tests::empty();
                let question = receiver.recv().expect("asked");
                assert_eq!(question.metrics, metrics, "a look at the health counts nothing");
                question.reply.send(Answer::Status(Box::new(status))).expect("waits");
            }
        });
        let classic = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(classic.starts_with("HTTP/1.1 200") && classic.contains("version=0.0.4"), "{classic}");
        assert!(classic.contains("entrain_build_info{"), "{classic}");
        let open = ask(
            address,
            "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text;version=1.0.0,*/*\r\n\r\n",
        );
        assert!(open.ends_with("# EOF\n"), "{open}");
        let healthy = ask(address, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(healthy.starts_with("HTTP/1.1 200") && healthy.ends_with("\r\n\r\nok\n"), "{healthy}");
        main_loop.join().expect("answered all");
        assert!(ask(address, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 503"), "nobody answers");
        assert!(ask(address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(address, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    }
}
