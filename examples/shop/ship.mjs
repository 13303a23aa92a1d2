// The stage `ship` of the shop in JavaScript, made from the .proto files alone:
//
//   npm install @grpc/grpc-js @grpc/proto-loader
//   node ship.mjs FOLDER-OF-THE-PROTOS HOST:PORT[,HOST:PORT]
//
// It works for ever: when its gateway is lost it connects to the next one. It may be killed at any time.
import { createRequire } from "node:module";
import { randomUUID } from "node:crypto";

// Modules are looked up from the folder in which the program runs.
const require = createRequire(`${process.cwd()}/`);
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [protos, addresses] = process.argv.slice(2);
const definition = loader.loadSync("pipelines.proto", { includeDirs: [protos], keepCase: true, longs: String });
const api = grpc.loadPackageDefinition(definition).wallaroo.pipelines.v1;

// Without an answer to a ping the gateway's machine has vanished, and the next gateway is tried.
const ALIVE = { "grpc.keepalive_time_ms": 10000, "grpc.keepalive_timeout_ms": 10000 };

const json = (payload) => JSON.parse(payload.data.toString());

function ship(delivery) {
  const order = JSON.parse(delivery.root_event.binary_data.toString());
  const pay = json(delivery.outputs.pay);
  const reserve = json(delivery.outputs.reserve);
  return { order: order.order, paid: pay.paid, ...reserve };
}

function acked(delivery) {
  const data = Buffer.from(JSON.stringify(ship(delivery)));
  const event = {
    id: randomUUID(),
    source: "/shop/ship.mjs",
    spec_version: "1.0",
    type: "shop.order.shipped",
    attributes: { datacontenttype: { ce_string: "application/json" } },
    binary_data: data,
  };
  return {
    ack: {
      delivery: delivery.delivery,
      output: { data, content_type: "application/json" },
      stream_outputs: [{ stream: "shop/shipments", events: [event] }],
    },
  };
}

function work(address) {
  return new Promise((ended) => {
    const client = new api.Pipelines(address, grpc.credentials.createInsecure(), ALIVE);
    const call = client.Work();
    call.on("data", (event) => {
      if (!event.delivery) return;
      try {
        call.write(acked(event.delivery));
      } catch (error) {
        call.write({ nack: { delivery: event.delivery.delivery, reason: String(error) } });
      }
    });
    // Every call ends with a status, also one that has never reached a gateway.
    call.on("error", () => {});
    call.on("status", (status) => {
      if (status.code !== grpc.status.OK) console.error(`${address}: ${status.details}`);
      client.close();
      ended();
    });
    call.write({ join: { pipeline: "shop/fulfil", stage: "ship", concurrency: 4 } });
  });
}

const gateways = addresses.split(",");
for (let at = 0; ; at++) {
  await work(gateways[at % gateways.length]);
  await new Promise((again) => setTimeout(again, 500));
}
