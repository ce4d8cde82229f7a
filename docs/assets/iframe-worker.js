/* Opened from the file system, a page may not start a worker, and search needs one. There, and only
   there, an invisible frame runs the worker's script instead; the two ends keep a worker's API. */
"use strict";
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      const deliver = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inner.postMessage = (data) => setTimeout(deliver, 0, data);
      inner.importScripts = (...scripts) =>
        scripts.reduce((before, src) => before.then(() => load(src)), Promise.resolve());
      const load = (src) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script");
          Object.assign(script, { src, onload: resolve, onerror: reject });
          inner.document.body.append(script);
        });
      load(new URL(url, location.href)).then(() => {
        this.inner = inner;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }

    postMessage(data) {
      if (!this.inner) this.waiting.push(data);
      else this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
