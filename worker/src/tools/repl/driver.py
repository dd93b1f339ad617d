import ast, json, os, sys, traceback
source = os.fdopen(os.dup(0), "r", encoding="utf-8")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(1, 2)
names = {"__name__": "__main__", "__builtins__": __builtins__}
for line in source:
    request = json.loads(line)
    status = "ok"
    try:
        tree = ast.parse(request["code"], "<repl>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<repl>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<repl>", "eval"), names)
            if value is not None:
                print(repr(value))
    except SystemExit as end:
        print("exit was called with", end.code)
        status = "error"
    except BaseException:
        kind, error, trace = sys.exc_info()
        traceback.print_exception(kind, error, trace.tb_next)
        status = "error"
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        pass
    os.write(1, ("\n\x1e" + request["mark"] + " " + status + "\n").encode())
