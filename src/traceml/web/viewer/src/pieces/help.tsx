/** The keys, in a window over the page. */

import { useLayoutEffect, useRef } from "preact/hooks";

const KEYS: readonly (readonly [string, string])[] = [
  ["?", "These keys"],
  ["g r", "The list of runs"],
  ["j", "The next part of the page"],
  ["k", "The part before"],
  ["t", "Light or dark"],
  ["/", "Filter the list of runs"],
  ["↑ ↓", "In the list: from run to run"],
  ["x", "In the list: select the run; with Shift as far as the last one"],
  ["Esc", "Close this"],
];

export function Help({ isOpen, onClose }: { isOpen: boolean; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    if (isOpen) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isOpen]);
  const leave = (): void => {
    if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
    onClose();
  };
  return (
    <dialog ref={dialog} class="help" aria-labelledby="help-title" onClose={leave}>
      <h2 id="help-title">Keys</h2>
      <dl>
        {KEYS.map(([key, does]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <button type="button" class="plain" onClick={leave}>
        Close
      </button>
    </dialog>
  );
}
