"""`octobert compare`: a page on this machine that asks the float model and the quantized one, side by side.

    command the command
    server  the socket, on the loopback interface only, and the address with its token
    guard   who may ask: token, host, origin, and the headers of every answer
    app     what is asked for: the page's files, the models, and work that is answered line by line
    models  the packages of a folder, opened when they are asked, and again when they change
    asking  one text, one text at several lengths, and a query in a list of texts
    jobs    rows of a file

Work is a generator of JSON objects. Each step runs alone, on one thread at a time, so that nothing disturbs what is timed.
Where the browser goes away, the generator is closed, and the work ends with the step that runs.
"""
