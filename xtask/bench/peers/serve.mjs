// The half of the conversation that every Node driver shares, and a client for programs that speak JSON in lines.
//
// A driver first says that it is ready, then takes a number on each line and answers with the times of so many
// commands, in microseconds. It ends when its input does. What a peer is and how it is asked lies in the drivers.

import { spawn } from "node:child_process";
import { once as event } from "node:events";
import { createInterface } from "node:readline";

/** Answers until the input ends. `once` runs one command and throws unless it succeeded. */
export async function serve(version, once) {
  say({ ready: version });
  for await (const line of createInterface({ input: process.stdin })) {
    const micros = [];
    for (let left = Number(line); left > 0; left--) {
      const start = process.hrtime.bigint();
      await once();
      micros.push(Number(process.hrtime.bigint() - start) / 1000);
    }
    say({ micros });
  }
}

function say(value) {
  process.stdout.write(`${JSON.stringify(value)}\n`);
}

/** A child that takes and gives one JSON object on each line. */
export class LineClient {
  #child;
  #waiting = new Map();
  #id = 0;
  #rest = "";
  /** Called with each message that answers nothing. */
  onNotice = () => {};

  constructor(program, args) {
    this.#child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
    this.#child.stdout.setEncoding("utf8").on("data", (data) => this.#read(data));
    this.#child.on("exit", (code) => this.#waiting.forEach(({ no }) => no(new Error(`the peer ended with ${code}`))));
    this.#child.on("error", (error) => this.#waiting.forEach(({ no }) => no(error)));
  }

  call(method, params) {
    const id = ++this.#id;
    return new Promise((yes, no) => {
      this.#waiting.set(id, { yes, no });
      this.#write({ jsonrpc: "2.0", id, method, params });
    });
  }

  notify(method, params) {
    this.#write({ jsonrpc: "2.0", method, params });
  }

  /** Closes its input, and ends it by its id should it not go by itself. */
  async end() {
    const gone = event(this.#child, "exit");
    this.#child.stdin.end();
    const late = setTimeout(() => this.#child.kill("SIGKILL"), 3000);
    if (this.#child.exitCode === null && this.#child.signalCode === null) {
      await gone;
    }
    clearTimeout(late);
  }

  #write(message) {
    this.#child.stdin.write(`${JSON.stringify(message)}\n`);
  }

  #read(data) {
    const lines = (this.#rest + data).split("\n");
    this.#rest = lines.pop();
    for (const line of lines.filter((line) => line.trim() !== "")) {
      const message = JSON.parse(line);
      const waiting = message.method === undefined && this.#waiting.get(message.id);
      if (!waiting) {
        this.onNotice(message);
        continue;
      }
      this.#waiting.delete(message.id);
      if (message.error) {
        waiting.no(new Error(JSON.stringify(message.error)));
      } else {
        waiting.yes(message.result);
      }
    }
  }
}
