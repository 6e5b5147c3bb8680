//! Crates around code in C or assembler.

use std::io::{Cursor, Read, Write};
use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::text::{sample, slowly};
use crate::body::{Me, Outcome, ensure};
use crate::step::{again, step};

/// Looks a certificate up in the middle of the handshake, which takes a moment.
#[derive(Debug)]
struct Slow(Arc<CertifiedKey>);

impl ResolvesServerCert for Slow {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        step();
        Some(self.0.clone())
    }
}

/// Configurations of both ends.
type Both = (Arc<ClientConfig>, Arc<ServerConfig>);

fn configure(provider: CryptoProvider) -> Both {
    let named = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
    let named = named.expect("a certificate");
    let certificate: CertificateDer<'static> = named.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(named.signing_key.serialize_der());
    let key = provider
        .key_provider
        .load_private_key(PrivateKeyDer::Pkcs8(key));
    let key = key.expect("a key that the provider knows");
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a root");
    let provider = Arc::new(provider);
    let client = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let resolver = Slow(Arc::new(CertifiedKey::new(vec![certificate], key)));
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("a version")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    (Arc::new(client), Arc::new(server))
}

/// Passes on what one end has to send; returns whether there was anything.
macro_rules! pass {
    ($from:ident, $to:ident) => {{
        let mut wire = Vec::new();
        while $from.wants_write() {
            $from
                .write_tls(&mut wire)
                .map_err(|error| error.to_string())?;
            step();
        }
        let mut wire = &wire[..];
        let any = !wire.is_empty();
        while !wire.is_empty() {
            $to.read_tls(&mut wire).map_err(|error| error.to_string())?;
            step();
            $to.process_new_packets()
                .map_err(|error| error.to_string())?;
        }
        any
    }};
}

/// A handshake in memory, then a question and an answer.
fn talk(me: &Me, both: &Both) -> Outcome {
    let name = ServerName::try_from("localhost").map_err(|error| error.to_string())?;
    let client = ClientConnection::new(both.0.clone(), name);
    let mut client = client.map_err(|error| error.to_string())?;
    step();
    let server = ServerConnection::new(both.1.clone());
    let mut server = server.map_err(|error| error.to_string())?;
    let question = format!("question {}", me.n);
    let asked = client.writer().write_all(question.as_bytes());
    ensure!(asked.is_ok(), "{asked:?}");
    while pass!(client, server) | pass!(server, client) {
        step();
    }
    ensure!(!client.is_handshaking(), "no end of the handshake");
    let mut found = vec![0; question.len()];
    let read = server.reader().read_exact(&mut found);
    ensure!(
        read.is_ok() && found == question.as_bytes(),
        "{read:?} {found:?}"
    );
    let answer = sample(me.n);
    let answered = server.writer().write_all(&answer);
    ensure!(answered.is_ok(), "{answered:?}");
    let mut found = Vec::new();
    while pass!(server, client) {
        let mut part = [0; 4096];
        while let Ok(length @ 1..) = client.reader().read(&mut part) {
            found.extend_from_slice(&part[..length]);
            step();
        }
    }
    ensure!(found == answer, "{} bytes of {}", found.len(), answer.len());
    Ok(answer.len() as u64)
}

pub(crate) fn rustls_ring(me: &Me) -> Outcome {
    static BOTH: LazyLock<Both> =
        LazyLock::new(|| configure(rustls::crypto::ring::default_provider()));
    talk(me, &BOTH)
}

pub(crate) fn rustls_aws_lc(me: &Me) -> Outcome {
    static BOTH: LazyLock<Both> =
        LazyLock::new(|| configure(rustls::crypto::aws_lc_rs::default_provider()));
    talk(me, &BOTH)
}

pub(crate) fn zstd(me: &Me) -> Outcome {
    let plain = sample(me.n);
    let packed = || -> std::io::Result<Vec<u8>> {
        let mut encoder = zstd::Encoder::new(Vec::new(), 3)?;
        for part in plain.chunks(2000) {
            encoder.write_all(part)?;
            step();
        }
        encoder.finish()
    };
    let packed = again(packed).map_err(|error| error.to_string())?;
    let mut back = Vec::new();
    let decoder = zstd::Decoder::new(slowly(Cursor::new(packed.clone())));
    let mut decoder = decoder.map_err(|error| error.to_string())?;
    let read = decoder.read_to_end(&mut back);
    ensure!(read.is_ok() && back == plain, "{read:?}");
    Ok(packed.len() as u64)
}

/// A database of its own, with a function that switches in the middle of a query.
pub(crate) fn rusqlite(me: &Me) -> Outcome {
    let run = || -> rusqlite::Result<i64> {
        let mut database = rusqlite::Connection::open_in_memory()?;
        database.execute("create table entries (number integer, name text)", [])?;
        let flags = rusqlite::functions::FunctionFlags::SQLITE_UTF8;
        database.create_scalar_function("slow", 1, flags, |context| {
            step();
            context.get::<i64>(0).map(|number| number + 1)
        })?;
        for batch in 0..3 {
            let transaction = database.transaction()?;
            for row in 0..10 {
                let number = batch * 10 + row;
                let values = rusqlite::params![number, format!("entry {number}")];
                transaction.execute("insert into entries values (?1, ?2)", values)?;
            }
            step();
            transaction.commit()?;
            step();
        }
        let mut select = database.prepare("select slow(number) from entries where name like ?1")?;
        let mut rows = select.query(["entry %"])?;
        let mut sum = 0;
        while let Some(row) = rows.next()? {
            sum += row.get::<_, i64>(0)?;
            step();
        }
        Ok(sum)
    };
    let sum = run().map_err(|error| error.to_string())?;
    ensure!(sum == 465, "{sum} instead of 465");
    Ok(sum as u64 + me.n)
}
