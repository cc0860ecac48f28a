/* The explorer in its frame follows the colours of the page around it. */
document.addEventListener('DOMContentLoaded', () => {
  const frame = document.querySelector('iframe.explorer');
  if (!frame) return;
  const tell = () => {
    const dark = document.body.dataset.mdColorScheme === 'slate';
    frame.contentWindow.postMessage({ theme: dark ? 'dark' : 'light' }, '*');
  };
  frame.addEventListener('load', tell);
  tell();  // the frame may have been loaded before this page was
  new MutationObserver(tell).observe(document.body, {
    attributeFilter: ['data-md-color-scheme'],
  });
});
