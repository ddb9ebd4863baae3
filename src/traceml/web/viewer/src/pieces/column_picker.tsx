/** Chooses columns of runs from a list that may be long: by searching, or by typing a name. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { OfferedColumn } from "../schema";

const MOST = 150; // rows of the list; more are found by typing
const EDGE_PX = 8;
const FEW = 2; // so many are named on the button

interface Properties {
  label: string;
  choices: readonly OfferedColumn[];
  /** The names of the chosen columns. */
  chosen: readonly string[];
  /** Several may be chosen. */
  isMany?: boolean;
  /** The words for choosing none; without them one has to be chosen. */
  none?: string;
  onChoose: (names: readonly string[]) => void;
}

export function ColumnPicker(properties: Properties) {
  const { label, choices, chosen, isMany, none, onChoose } = properties;
  const [isOpen, setOpen] = useState(false);
  const root = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    const leave = (event: Event): void => {
      if (!root.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", leave);
    document.addEventListener("focusin", leave);
    return () => {
      document.removeEventListener("pointerdown", leave);
      document.removeEventListener("focusin", leave);
    };
  }, [isOpen]);
  const labels = chosen.map((name) => choices.find((one) => one.name === name)?.label ?? name);
  const words = labels.length > FEW ? `${labels.length} chosen` : labels.join(", ") || (none ?? "none");
  const choose = (name: string): void => {
    if (!isMany) {
      setOpen(false);
      root.current?.querySelector("button")?.focus();
      return onChoose([name]);
    }
    onChoose(chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name]);
  };
  return (
    <div
      ref={root}
      class="picker"
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !isOpen) return;
        setOpen(false);
        root.current?.querySelector("button")?.focus();
      }}
    >
      <button
        type="button"
        class="plain"
        aria-haspopup="dialog"
        aria-expanded={isOpen}
        title={labels.join(", ")}
        onClick={() => setOpen(!isOpen)}
      >
        <span class="hint">{label}</span> <span class="picked">{words}</span>
      </button>
      {isOpen && (
        <Choices
          label={label}
          choices={choices}
          chosen={chosen}
          none={none ?? null}
          onChoose={choose}
          onNone={() => {
            setOpen(false);
            onChoose([]);
          }}
        />
      )}
    </div>
  );
}

interface ChoicesProperties {
  label: string;
  choices: readonly OfferedColumn[];
  chosen: readonly string[];
  none: string | null;
  onChoose: (name: string) => void;
  onNone: () => void;
}

function Choices({ label, choices, chosen, none, onChoose, onNone }: ChoicesProperties) {
  const [typed, setTyped] = useState("");
  const field = useRef<HTMLInputElement>(null);
  const list = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const beyond = list.current!.getBoundingClientRect().right - document.body.clientWidth + EDGE_PX;
    if (beyond > 0) list.current!.style.left = `${-beyond}px`; // at the edge of the window
    field.current?.focus();
  }, []);
  const wanted = typed.trim().toLowerCase();
  const picked = new Set(chosen);
  const matching = choices.filter(({ name }) => name.toLowerCase().includes(wanted));
  const ordered = [
    ...matching.filter(({ name }) => picked.has(name)),
    ...matching.filter(({ name }) => !picked.has(name)),
  ];
  const shown = ordered.slice(0, MOST);
  return (
    <div ref={list} class="picker-list" role="dialog" aria-label={`Choose: ${label}`}>
      <input
        ref={field}
        type="search"
        value={typed}
        placeholder="Search, or type a name"
        aria-label={`Search: ${label}`}
        onInput={(event) => setTyped(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || wanted === "") return;
          event.preventDefault(); // or it would press the button that has the focus next
          onChoose(shown[0]?.name ?? typed.trim());
        }}
      />
      <ul>
        {none !== null && (
          <li>
            <button type="button" onClick={onNone}>
              {none}
            </button>
          </li>
        )}
        {shown.map((one) => (
          <li key={one.name}>
            <button
              type="button"
              aria-pressed={picked.has(one.name)}
              title={one.name}
              onClick={() => onChoose(one.name)}
            >
              <span>{one.label}</span>
              <span class="hint">{one.section}</span>
            </button>
          </li>
        ))}
        {wanted !== "" && shown.length === 0 && (
          <li>
            <button type="button" onClick={() => onChoose(typed.trim())}>
              Use “{typed.trim()}”
            </button>
          </li>
        )}
      </ul>
      {ordered.length > MOST && <p class="hint">{ordered.length - MOST} more: type to find them.</p>}
    </div>
  );
}
