/* The search runs in a worker, which browsers refuse to pages that are opened
   from the disk. There, a hidden frame does the same. */
if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement('iframe');
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent('message', { data }));
      const script = inside.document.createElement('script');
      script.src = address;
      this.loaded = new Promise((resolve) => {
        script.onload = resolve;
      });
      inside.document.head.append(script);
    }

    async postMessage(data) {
      await this.loaded;
      const inside = this.frame.contentWindow;
      inside.dispatchEvent(new MessageEvent('message', { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
