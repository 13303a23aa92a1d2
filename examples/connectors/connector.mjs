// A connector in JavaScript, with node's standard library alone (draft-be). Each line of standard input is a message.
//
//   WALLAROO_WORKERS=host-a:7100 WALLAROO_COOKIE=secret WALLAROO_INSTANCE=shop-1 node connector.mjs < orders.txt
//
// The message id of a line is its number. So the program may be killed at any time: when it is started again with the
// same lines, it goes on behind the committed ones. Source: docs/protocol.md.
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { setTimeout as pause } from "node:timers/promises";

const ADDRESSES = (process.env.WALLAROO_WORKERS ?? "127.0.0.1:7100").split(",");
const COOKIE = process.env.WALLAROO_COOKIE ?? "";
const INSTANCE = process.env.WALLAROO_INSTANCE ?? "connector.mjs";
const VERSION = "0.0.1";
const PROGRAM = "connector.mjs";
const STREAM = 1n; // The id of the one stream belongs to this instance.
const NAME = "lines";
const BOUNDARY = 2;
const EOS = 4;
const ANSWER_MS = 40_000; // A worker may answer HELLO late.
const GIVE_UP_MS = 300_000;

const lines = linesOf(readFileSync(0));
const LAST = Math.max(1, lines.length); // The id of the stream's end.

function linesOf(bytes) {
  const found = [];
  for (let at = 0; at < bytes.length; ) {
    const end = bytes.indexOf(10, at);
    found.push(bytes.subarray(at, end < 0 ? bytes.length : end));
    at = end < 0 ? bytes.length : end + 1;
  }
  return found;
}

const u16 = (value) => Buffer.from([value >> 8, value & 255]);
const u64 = (value) => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(value));
  return bytes;
};
const short = (text) => Buffer.concat([u16(Buffer.byteLength(text)), Buffer.from(text)]);

function frame(tag, ...fields) {
  const body = Buffer.concat(fields);
  const head = Buffer.alloc(5);
  head.writeUInt32BE(body.length + 1); // The length counts the tag and the body.
  head.write(tag, 4);
  return Buffer.concat([head, body]);
}

// An answer for a person: connecting again would bring the same one.
class Refused extends Error {}

// One session. It resolves to { done }, or to { opened, address } when the connector has to come back.
function session(address) {
  return new Promise((resolve, reject) => {
    const colon = address.lastIndexOf(":");
    const host = address.slice(0, colon).replace(/^\[|\]$/g, "");
    const socket = connect({ host, port: Number(address.slice(colon + 1)), keepAlive: true, noDelay: true });
    let received = Buffer.alloc(0);
    let opened = false;
    let credits = 0;
    let next = 1;
    let ended = false;

    const leave = (result) => {
      socket.destroy();
      resolve({ opened, ...result });
    };
    socket.setTimeout(ANSWER_MS, () => opened || leave({}));
    socket.on("error", () => leave({}));
    socket.on("close", () => leave({}));
    socket.on("connect", () =>
      socket.write(frame("H", short(VERSION), short(COOKIE), short(PROGRAM), short(INSTANCE))),
    );
    socket.on("data", (data) => {
      received = Buffer.concat([received, data]); // A frame may come in parts, and several at once.
      while (received.length >= 4 && received.length >= 4 + received.readUInt32BE()) {
        const end = 4 + received.readUInt32BE();
        const [tag, body] = [String.fromCharCode(received[4]), received.subarray(5, end)];
        received = received.subarray(end);
        if (socket.destroyed) return;
        take(tag, body);
      }
    });

    function take(tag, body) {
      if (tag === "O") {
        opened = true;
        credits = body.readUInt32BE();
        const committed = committedOf(body);
        socket.write(frame("N", u64(STREAM), short(NAME), u64(committed)));
        credits -= 1;
        next = committed + 1;
      } else if (tag === "A") {
        credits += body.readUInt32BE();
        for (let at = 8; at < body.length; at += 16) {
          const reference = Number(body.readBigUInt64BE(at + 8));
          if (body.readBigUInt64BE(at) === STREAM && ended && reference >= LAST) return leave({ done: true });
        }
      } else if (tag === "!") {
        return leave({}); // RESTART: connect again, and go on behind the reference of OK.
      } else if (tag === "E") {
        return refused(body.subarray(2).toString());
      }
      send();
    }

    function send() {
      while (credits > 0 && !ended) {
        if (next <= lines.length) {
          socket.write(frame("M", u16(0), u64(STREAM), u64(next), lines[next - 1]));
          next += 1;
        } else {
          socket.write(frame("M", u16(BOUNDARY | EOS), u64(STREAM), u64(LAST)));
          ended = true;
        }
        credits -= 1;
      }
    }

    function refused(reason) {
      const redirect = /^redirect to (\S+): /.exec(reason);
      if (redirect) return leave({ address: redirect[1] });
      if (reason.startsWith("try again later: ")) return leave({});
      socket.destroy();
      reject(new Refused(reason));
    }
  });
}

// The committed reference of the stream in OK, by its id: a worker may not know the name.
function committedOf(body) {
  for (let at = 4; at < body.length; ) {
    const [id, length] = [body.readBigUInt64BE(at), body.readUInt16BE(at + 8)];
    const reference = Number(body.readBigUInt64BE(at + 10 + length));
    if (id === STREAM) return reference;
    at += 18 + length;
  }
  return 0;
}

let address = ADDRESSES[0];
let redirects = 0;
let failures = 0;
let lost = Date.now(); // Since when there is no session.
try {
  for (;;) {
    const result = await session(address);
    if (result.done) break;
    if (result.opened) {
      failures = redirects = 0;
      lost = Date.now();
    }
    if (result.address && redirects < 5) {
      redirects += 1;
      address = result.address;
      continue;
    }
    if (Date.now() - lost > GIVE_UP_MS) throw new Refused(`there is no session with ${ADDRESSES.join(", ")}`);
    redirects = 0;
    address = ADDRESSES[failures % ADDRESSES.length];
    await pause(Math.min(10_000, 200 * 2 ** failures) * (0.5 + Math.random() / 2));
    failures += 1;
  }
} catch (error) {
  if (!(error instanceof Refused)) throw error;
  console.error(`connector.mjs: ${error.message}`);
  process.exitCode = 1;
}
