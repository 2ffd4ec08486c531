//! A proxy that breaks connections in the ways of networks.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What becomes of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// They pass.
    Fair = 0,
    /// Connections are closed, and new ones at once.
    Cut = 1,
    /// Bytes of clients are held back until the weather is fair.
    DeafServer = 2,
    /// Bytes of the server are held back.
    DeafClient = 3,
    /// Both.
    Silence = 4,
}

/// A proxy to a port of this machine.
pub struct Proxy {
    pub port: u16,
    weather: Arc<AtomicU8>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    /// Connections that it refused, and writes that it held back.
    met: Arc<AtomicUsize>,
}

impl Proxy {
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let own = listener.local_addr().unwrap().port();
        let (weather, open) = (Arc::new(AtomicU8::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (sky, all) = (Arc::clone(&weather), Arc::clone(&open));
        let met = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&met);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                if sky.load(Ordering::SeqCst) == Weather::Cut as u8 {
                    count.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                all.lock().unwrap().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                let pair = [client.try_clone().unwrap(), server.try_clone().unwrap()];
                let [there, back] = [(); 2].map(|()| (Arc::clone(&sky), Arc::clone(&count)));
                std::thread::spawn(move || pump(client, server, &there, Weather::DeafServer));
                let [client, server] = pair;
                std::thread::spawn(move || pump(server, client, &back, Weather::DeafClient));
            }
        });
        Self { port: own, weather, open, met }
    }

    /// Waits until somebody has met the weather since a number of meetings.
    pub fn wait_until_met(&self, before: usize) {
        let begun = Instant::now();
        while self.met() == before {
            assert!(begun.elapsed() < Duration::from_secs(120), "nobody met the weather");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// How often somebody met bad weather.
    pub fn met(&self) -> usize {
        self.met.load(Ordering::SeqCst)
    }

    pub fn set(&self, weather: Weather) {
        self.weather.store(weather as u8, Ordering::SeqCst);
        if weather == Weather::Cut {
            for stream in self.open.lock().unwrap().drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

/// Moves bytes one way, unless the weather holds them back, which it counts.
fn pump(mut from: TcpStream, mut to: TcpStream, (sky, met): &(Arc<AtomicU8>, Arc<AtomicUsize>), held: Weather) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let holds = |now: u8| now == held as u8 || now == Weather::Silence as u8;
        if holds(sky.load(Ordering::SeqCst)) {
            met.fetch_add(1, Ordering::SeqCst);
        }
        while holds(sky.load(Ordering::SeqCst)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
