/** Tags and the note of one run or of several, changed in the page. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { ListRow } from "../schema";

interface Properties {
  base: string;
  /** The run, or the names of several, of which tags are only added and removed. */
  target: ListRow | readonly string[];
  onChanged: () => void;
  onClose: () => void;
}

interface Change {
  add: readonly string[];
  remove: readonly string[];
  note: string | null;
}

export function TagEditor({ base, target, onChanged, onClose }: Properties) {
  const dialog = useRef<HTMLDialogElement>(null);
  const run = "name" in target ? target : null;
  const names = run === null ? (target as readonly string[]) : [run.name];
  const [tags, setTags] = useState<readonly string[]>(run?.tags ?? []);
  const [removed, setRemoved] = useState<readonly string[]>([]);
  const [note, setNote] = useState(run?.note ?? "");
  const [typed, setTyped] = useState("");
  const [state, setState] = useState<{ words: string; isError: boolean } | null>(null);
  useLayoutEffect(() => dialog.current?.showModal(), []);
  const addTyped = (): readonly string[] => {
    const next = [...new Set([...tags, ...wordsIn(typed)])];
    setTags(next);
    setTyped("");
    return next;
  };
  const drop = (tag: string): void => {
    setTags(tags.filter((one) => one !== tag));
    if (run?.tags.includes(tag)) setRemoved([...removed, tag]);
  };
  const save = async (): Promise<void> => {
    const all = addTyped();
    const change: Change = {
      add: all.filter((tag) => !run?.tags.includes(tag)),
      remove: removed.filter((tag) => !all.includes(tag)),
      note: run !== null && note !== (run.note ?? "") ? note : null,
    };
    try {
      for (const [place, name] of names.entries()) {
        if (names.length > 1) {
          setState({ words: `${place + 1} of ${names.length} …`, isError: false });
        }
        await sendChange(base, name, change);
      }
      onChanged();
      dialog.current?.close();
    } catch (error) {
      setState({ words: (error as Error).message, isError: true });
      onChanged();
    }
  };
  return (
    <dialog ref={dialog} class="help tag-editor" aria-labelledby="tags-title" onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void save();
        }}
      >
        <h2 id="tags-title">
          {run === null ? `Tag ${names.length} runs` : `Tags and note of ${run.name}`}
        </h2>
        <ul class="tag-list">
          {tags.map((tag) => (
            <li key={tag} class="tag">
              {tag}
              <button
                type="button"
                class="quiet"
                aria-label={`Remove the tag ${tag}`}
                onClick={() => drop(tag)}
              >
                ×
              </button>
            </li>
          ))}
        </ul>
        <label>
          Add tags{" "}
          <input
            type="text"
            autofocus
            value={typed}
            maxLength={1000}
            placeholder="good, baseline"
            onInput={(event) => setTyped(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" || typed.trim() === "") return;
              event.preventDefault();
              addTyped();
            }}
          />
        </label>
        {run !== null && (
          <label>
            Note
            <textarea
              rows={4}
              value={note}
              maxLength={10_000}
              onInput={(event) => setNote(event.currentTarget.value)}
            />
          </label>
        )}
        {state !== null && (
          <p class={state.isError ? "filter-error" : "note"} role={state.isError ? "alert" : "status"}>
            {state.words}
          </p>
        )}
        <div class="picker-buttons">
          <button type="button" class="plain" onClick={() => dialog.current?.close()}>
            Cancel
          </button>
          <button type="submit" class="main-button">
            Save
          </button>
        </div>
      </form>
    </dialog>
  );
}

function wordsIn(text: string): string[] {
  return text.split(",").map((tag) => tag.trim()).filter(Boolean);
}

interface Writing {
  token: string | null;
  why: string | null;
}

/** Writes a change; the server wants a token with it, which it tells its own pages alone. */
async function sendChange(base: string, name: string, change: Change): Promise<void> {
  const writing = (await (await fetch(`${base}/api/writing`)).json()) as Writing;
  if (writing.token === null) throw new Error(writing.why ?? "Nothing can be changed here.");
  const answer = await fetch(`${base}/api/runs/${encodeURIComponent(name)}/tags`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-traceml-token": writing.token },
    body: JSON.stringify(change),
  });
  if (answer.ok) return;
  const said = (await answer.json().catch(() => ({}))) as { error?: string };
  throw new Error(said.error ?? `The server answered ${answer.status}; reload the page.`);
}
